import { render } from "preact";
import { App } from "./app";
import "./state/theme";
import { follow } from "./state/stream";

const root = document.getElementById("app");
if (root) {
  root.textContent = "";
  render(<App />, root);
}
follow();
