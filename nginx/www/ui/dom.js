// Elements. All that comes from outside goes in as text.

const SVG = "http://www.w3.org/2000/svg";

export function make(tag, className = "", parent = null, words = null) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (words !== null) element.textContent = words;
  parent?.append(element);
  return element;
}

export function draw(tag, attributes, parent) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  parent.append(element);
  return element;
}

export function button(className, parent, words, pressed) {
  const element = make("button", className, parent, words);
  element.type = "button";
  element.addEventListener("click", pressed);
  return element;
}

// Only what differs is written: an unchanged text costs no layout, and keeps a selection.
export function setText(element, words) {
  if (element.textContent !== words) element.textContent = words;
}

export function setAttribute(element, name, value) {
  if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}

// Shares of a whole as a width in percent.
export function setWidth(element, share) {
  const width = `${Math.min(Math.max(share, 0), 1) * 100}%`;
  if (element.style.width !== width) element.style.width = width;
}

// One child of `parent` an item, in their order: those that stay keep their element, and so
// their focus. create(item) gives { element, show(item) }.
export class Keyed {
  #parent;
  #create;
  #parts = new Map();

  constructor(parent, create) {
    this.#parent = parent;
    this.#create = create;
  }

  show(items, key) {
    const left = new Map(this.#parts);
    let before = null;
    for (const item of items) {
      const name = key(item);
      const part = this.#parts.get(name) ?? this.#create(item);
      this.#parts.set(name, part);
      left.delete(name);
      part.show(item);
      const place = before ? before.nextElementSibling : this.#parent.firstElementChild;
      if (place !== part.element) this.#parent.insertBefore(part.element, place);
      before = part.element;
    }
    for (const [name, part] of left) {
      part.element.remove();
      this.#parts.delete(name);
    }
  }
}
