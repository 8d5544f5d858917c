// What is switched on, and the small helpers that every part uses.

const data = JSON.parse(document.getElementById("data").textContent);
const off = { algorithms: new Set(), tasks: new Set() };
let singleSeeds = false;

const isOn = (kind, name) => !off[kind].has(name);
const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

/** An element with attributes (`text` is its text, `on` its click) and children. */
function make(tag, attributes = {}, ...children) {
  const svg = ["svg", "g", "path", "line", "rect", "text", "tspan", "title", "circle"].includes(tag);
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "text") node.textContent = value;
    else if (key === "on") node.addEventListener("click", value);
    else if (value !== undefined && value !== false) node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
}

/** As Python prints it: rounded, from the middle to the even digit, and never -0.0. */
function fixed(x, digits) {
  const exact = x.toFixed(20), cut = exact.slice(0, digits - 20), rest = exact.slice(digits - 20);
  const text = /^50*$/.test(rest) && /[02468]$/.test(cut) ? cut : x.toFixed(digits);
  return text.startsWith("-") && Number(text) === 0 ? text.slice(1) : text;
}

/** 10k, 1.5M. */
function short(x) {
  for (const [size, letter] of [[1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(x) >= size) return `${Number((x / size).toPrecision(4))}${letter}`;
  }
  return `${Number(x.toPrecision(4))}`;
}

/** The algorithms and tasks of a section that are on. */
function current(section) {
  return {
    algorithms: section.algorithms.filter((name) => isOn("algorithms", name)),
    tasks: section.tasks.filter((name) => isOn("tasks", name)),
  };
}
