// Numbers, sizes and times as the language writes them.

const UNITS = {
  en: { s: "{0} s", m: "{0} min {1} s", h: "{0} h {1} min", d: "{0} d {1} h" },
  zh: { s: "{0} 秒", m: "{0} 分 {1} 秒", h: "{0} 时 {1} 分", d: "{0} 天 {1} 时" },
};
const SIZES = ["B", "KiB", "MiB", "GiB", "TiB"];
const NONE = "–";

export class Format {
  #language;
  #number;
  #fraction;
  #percent;
  #clock;
  #minute;

  constructor(language, timeZone) {
    const locale = language === "zh" ? "zh-CN" : "en-GB";
    this.#language = Object.hasOwn(UNITS, language) ? language : "en";
    this.#number = new Intl.NumberFormat(locale);
    this.#fraction = new Intl.NumberFormat(locale, { maximumFractionDigits: 1 });
    this.#percent = new Intl.NumberFormat(locale, { style: "percent", maximumFractionDigits: 0 });
    const times = { hour: "2-digit", minute: "2-digit", hourCycle: "h23", timeZone };
    this.#minute = new Intl.DateTimeFormat(locale, times);
    this.#clock = new Intl.DateTimeFormat(locale, { ...times, second: "2-digit" });
  }

  number(value) {
    return value === null || value === undefined ? NONE : this.#number.format(value);
  }

  percent(share) {
    return Number.isFinite(share) ? this.#percent.format(share) : NONE;
  }

  bytes(value) {
    if (value === null || value === undefined) return NONE;
    let unit = 0;
    let size = value;
    while (size >= 1024 && unit < SIZES.length - 1) {
      size /= 1024;
      unit += 1;
    }
    const shown = unit === 0 || size >= 100 ? this.#number.format(Math.round(size)) : this.#fraction.format(size);
    return `${shown} ${SIZES[unit]}`;
  }

  // Two units at most: nobody needs the seconds of an hour.
  duration(seconds) {
    if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return NONE;
    const s = Math.max(0, Math.floor(seconds));
    if (s < 60) return this.#fill("s", s);
    if (s < 3600) return this.#fill("m", Math.floor(s / 60), s % 60);
    if (s < 86_400) return this.#fill("h", Math.floor(s / 3600), Math.floor(s / 60) % 60);
    return this.#fill("d", Math.floor(s / 86_400), Math.floor(s / 3600) % 24);
  }

  // Of seconds since 1970.
  time(at) {
    return this.#clock.format(at * 1000);
  }

  minute(at) {
    return this.#minute.format(at * 1000);
  }

  #fill(unit, first, second) {
    const two = String(second).padStart(2, "0");
    return UNITS[this.#language][unit].replace("{0}", this.#number.format(first)).replace("{1}", two);
  }
}

// As much of an id as tells it from others at a glance.
export function shortId(id) {
  return id.length <= 10 ? id : id.slice(0, 8);
}
