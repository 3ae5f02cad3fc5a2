/** Numbers for people, which stay on one line with their units. What is not known is a dash. */

export const DASH = "–";

/** Seconds in the unit that fits, always with three digits: 840 µs, 38.0 ms, 1.24 s; then 3 min 20 s, 2 h 5 min, 4 d. */
export const duration = (seconds: number | null | undefined): string => timeSpan(seconds, threeDigits);
/** The same without zeros at the end: 40 ms, 1 s. */
export const plainDuration = (seconds: number | null | undefined): string => timeSpan(seconds, digits);

function timeSpan(seconds: number | null | undefined, written: (value: number) => string): string {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return DASH;
  if (seconds < 0) return `-${timeSpan(-seconds, written)}`;
  if (seconds === 0) return "0\u00a0ms";
  if (seconds < 0.001) return `${written(seconds * 1e6)}\u00a0µs`;
  if (seconds < 0.9995) return `${written(seconds * 1000)}\u00a0ms`;
  if (seconds < 99.95) return `${written(seconds)}\u00a0s`;
  const whole = Math.round(seconds);
  if (whole < 3600) return units(whole, 60, "min", 1, "s");
  if (whole < 86400) return units(whole, 3600, "h", 60, "min");
  return units(whole, 86400, "d", 3600, "h");
}

function units(seconds: number, large: number, largeName: string, small: number, smallName: string): string {
  const rest = Math.floor((seconds % large) / small);
  return `${Math.floor(seconds / large)} ${largeName}${rest ? ` ${rest} ${smallName}` : ""}`;
}

/** How long ago: whole units only. */
export function age(seconds: number): string {
  if (seconds < 1) return "now";
  if (seconds < 60) return `${Math.floor(seconds)} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ago`;
  return `${Math.floor(seconds / 86400)} d ago`;
}

/** Three digits that count, thousands apart by a thin space. */
export function number(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return DASH;
  if (Math.abs(value) >= 1000) return grouped(Math.round(value));
  return digits(value);
}

/** A whole number, thousands apart. */
export function count(value: number | null | undefined): string {
  return value === null || value === undefined ? DASH : grouped(Math.round(value));
}

/** 12.4k, 3.1M: for the axes of plots. */
export function short(value: number): string {
  const size = Math.abs(value);
  if (size >= 1e9) return `${digits(value / 1e9)}G`;
  if (size >= 1e6) return `${digits(value / 1e6)}M`;
  if (size >= 1e3) return `${digits(value / 1e3)}k`;
  return digits(value);
}

export function percent(share: number | null | undefined): string {
  if (share === null || share === undefined || !Number.isFinite(share)) return DASH;
  const value = share * 100;
  return `${value > 0 && value < 10 ? digits(Math.round(value * 10) / 10) : Math.round(value)}\u00a0%`;
}

/** Bytes in Kubernetes' binary units: 15.3 GiB. */
export function bytes(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return DASH;
  const names = ["B", "KiB", "MiB", "GiB", "TiB"];
  let index = 0;
  while (Math.abs(value) >= 1024 && index < names.length - 1) {
    value /= 1024;
    index += 1;
  }
  return `${digits(value)}\u00a0${names[index]}`;
}

const clockFormat = new Intl.DateTimeFormat(undefined, {
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  hourCycle: "h23",
});
const dayFormat = new Intl.DateTimeFormat(undefined, {
  month: "short",
  day: "numeric",
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  hourCycle: "h23",
});

/** Hours and minutes, of unix seconds. */
export const minute = (time: number): string => clockFormat.format(time * 1000).slice(0, 5);
/** Time of day, of unix seconds. */
export const clock = (time: number): string => clockFormat.format(time * 1000);
/** Day and time of day, of unix seconds. */
export const moment = (time: number): string => dayFormat.format(time * 1000);

/** Unix seconds of an RFC 3339 time; null of anything else. */
export function parseTime(text: string | null | undefined): number | null {
  const value = text ? Date.parse(text) : Number.NaN;
  return Number.isNaN(value) ? null : value / 1000;
}

function threeDigits(value: number): string {
  const size = Math.abs(value);
  return value.toFixed(size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2);
}

function digits(value: number): string {
  const text = threeDigits(value);
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

const grouped = (value: number): string => String(value).replace(/\B(?=(\d{3})+$)/g, "\u202f");
