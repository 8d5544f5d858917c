// The switches, and the page as it stands behind them.

function update() {
  for (const section of data.sections) {
    const frame = document.getElementById(section.folder).closest("section"), now = current(section);
    frame.classList.toggle("empty", !now.algorithms.length || !now.tasks.length);
    $$("figure.table[data-name]", frame).forEach((figure) => updateTable(section, figure));
    updateFigures(section, frame);
  }
  for (const chip of $$(".chip")) chip.setAttribute("aria-pressed", isOn(chip.dataset.kind, chip.dataset.name));
  for (const kind of ["algorithms", "tasks"]) {
    const every = names(kind).length, count = names(kind).filter((name) => isOn(kind, name)).length;
    $(`#switches .${kind} summary`).textContent = `${kind} (${count === every ? every : `${count} of ${every}`})`;
  }
  $("#switches .reset").hidden = off.algorithms.size + off.tasks.size === 0;
}

const names = (kind) => [...new Set(data.sections.flatMap((section) => section[kind]))];

function chip(kind, name) {
  const of = data.sections.find((section) => section[kind].includes(name));
  const swatch = kind === "algorithms" ? [make("i", { style: `background:${of.looks[name][0]}`, class: of.looks[name][1] ? "dashed" : "" })] : [];
  const flip = () => {
    if (!off[kind].delete(name)) off[kind].add(name);
    update();
  };
  return make("button", { class: "chip", "data-kind": kind, "data-name": name, "aria-pressed": "true", title: "click to hide or show", on: flip }, ...swatch, name);
}

function switches() {
  const bar = make("div", { id: "switches", role: "group", "aria-label": "algorithms and tasks to show" });
  for (const kind of ["algorithms", "tasks"]) {
    const box = make("details", { class: kind }, make("summary", { text: kind }), make("div", { class: "chips" }, ...names(kind).map((name) => chip(kind, name))));
    box.open = kind === "algorithms" && names(kind).length < 9 && innerWidth > 700;
    bar.append(box);
  }
  const seeds = make("input", { type: "checkbox", id: "single-seeds" });
  seeds.addEventListener("change", () => {
    singleSeeds = seeds.checked;
    update();
  });
  const reset = make("button", { class: "reset", text: "show everything", on: () => {
    off.algorithms.clear();
    off.tasks.clear();
    update();
  } });
  if (data.sections.some((s) => s.curves.length)) bar.append(make("label", {}, seeds, " single seeds"));
  bar.append(reset);
  $("nav").after(bar);
}

/** The scale at which a table fits a page of paper. */
const fitPaper = (frame) => frame.style.setProperty("--print", Math.min(1, 660 / $("table", frame).scrollWidth));

function begin() {
  document.documentElement.classList.add("script");
  document.body.append(make("div", { id: "tip", hidden: "" }), make("dialog", { id: "dialog" }));
  $("#dialog").addEventListener("click", (event) => event.target.id === "dialog" && event.target.close());
  switches();
  for (const section of data.sections) {
    const frame = document.getElementById(section.folder).closest("section");
    for (const figure of $$("figure.table[data-name]", frame)) {
      sortable(figure);
      clickable(section, figure);
    }
  }
  for (const figure of $$("figure.table")) {
    const frame = $(".scroll", figure), caption = $("figcaption", figure) ?? figure.insertBefore(make("figcaption"), figure.firstChild);
    caption.append(copyButton(() => tableLatex(figure)));
    frame.after(make("button", { class: "goes-on", hidden: "", on: () => frame.scrollBy({ left: frame.clientWidth * 0.8, behavior: "smooth" }) }));
    frame.addEventListener("scroll", () => updateScroll(frame), { passive: true });
    fitPaper(frame);
  }
  addEventListener("resize", () => $$(".scroll").forEach(updateScroll));
  $$("details").forEach((box) => box.addEventListener("toggle", () => $$(".scroll", box).forEach((frame) => (fitPaper(frame), updateScroll(frame)))));
  update();
  $$(".scroll").forEach(updateScroll);
}

begin();
