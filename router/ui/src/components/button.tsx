import type { ButtonHTMLAttributes, ComponentChildren } from "preact";
import { Icon, type IconName } from "./icons";

interface Props extends Omit<ButtonHTMLAttributes<HTMLButtonElement>, "icon" | "type" | "class" | "label"> {
  class?: string;
  icon?: IconName;
  kind?: "plain" | "primary" | "quiet" | "danger";
  disabled?: boolean;
  type?: "button" | "submit";
  children?: ComponentChildren;
}

export function Button({ icon, kind = "plain", type = "button", class: extra, children, ...rest }: Props) {
  return (
    <button {...rest} type={type} class={`button ${kind} ${extra ?? ""}`}>
      {icon && <Icon name={icon} />}
      {children}
    </button>
  );
}

/** A button that shows an icon only; `label` is its name and its tooltip. */
export function IconButton({
  label,
  icon,
  kind = "quiet",
  ...rest
}: Omit<Props, "children"> & { label: string; icon: IconName }) {
  return (
    <Button
      {...rest}
      kind={kind}
      icon={icon}
      class={`icon-only ${rest.class ?? ""}`}
      aria-label={label}
      title={label}
    />
  );
}
