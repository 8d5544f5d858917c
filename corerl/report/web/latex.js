// LaTeX of what is shown: tables as booktabs, figures as pgfplots.

const TEX = {
  "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "–": "--", "±": "$\\pm$", "×": "$\\times$",
  "▲": "$\\uparrow$", "▼": "$\\downarrow$", "<": "\\textless{}", ">": "\\textgreater{}",
  "|": "\\textbar{}", '"': "\\symbol{34}",
};
const GREEK = "α alpha β beta γ gamma δ delta ε epsilon η eta θ theta κ kappa λ lambda μ mu π pi ρ rho σ sigma τ tau φ phi ω omega";
for (const [, letter, name] of GREEK.matchAll(/(\S) (\S+)/g)) TEX[letter] = `$\\${name}$`;
const tex = (text) => [...text].map((c) => TEX[c] ?? ("&%$#_{}".includes(c) ? `\\${c}` : c)).join("");
const line = (texts) => `${/^[[*]/.test(texts[0]) ? "{}" : ""}${texts.join(" & ")} \\\\`; // not an option of the command before

function headText(head) {
  const told = $("small", head)?.textContent.replace("n = ", "n="), name = head.textContent.slice(0, head.textContent.length - ($("small", head)?.textContent.length ?? 0));
  return told ? `${name} (${told})` : name;
}

function cellLatex(cell) {
  const spread = $(".spread", cell), mark = $(".up, .down", cell);
  const value = tex((cell.firstChild?.textContent ?? "").trim());
  const few = spread?.classList.contains("few");
  const text = spread ? `${value} ${few ? `\\textcolor{gray}{${tex(spread.textContent)}}` : tex(spread.textContent)}` : value;
  return cell.classList.contains("top") ? `\\textbf{${text}}` : text + tex(mark?.textContent ?? "");
}

/** The shown part of a table, as corerl.report.formats.to_latex writes the whole. */
function tableLatex(figure) {
  const heads = $$("thead th", figure).filter(isShown);
  const notes = $$(".notes p", figure).filter(isShown).map((note) => note.textContent);
  const lines = [figure.dataset.title, ...notes].filter(Boolean).map((note) => `% ${note}`);
  lines.push(`\\begin{tabular}{l${"r".repeat(heads.length - 1)}}`, "\\toprule", line(heads.map((h) => tex(headText(h)))), "\\midrule");
  let before = null;
  for (const row of $$("tbody tr", figure).filter(isShown)) {
    if (before && row.dataset.metric && !before.dataset.metric) lines.push("\\midrule");
    const [name, ...cells] = [...row.cells].filter(isShown);
    lines.push(line([tex(name.textContent), ...cells.map(cellLatex)]));
    before = row;
  }
  return [...lines, "\\bottomrule", "\\end{tabular}", ""].join("\n");
}

/** Lines and bands [{name, color, points: [[x, y, low, high]], seeds}] as a pgfplots axis. */
function linesLatex(title, x, y, series) {
  const colour = (s) => `{rgb,255:red,${parseInt(s.color.slice(1, 3), 16)};green,${parseInt(s.color.slice(3, 5), 16)};blue,${parseInt(s.color.slice(5), 16)}}`;
  const style = { "": "solid", "6 3": "dashed", "2 2.5": "dotted", "7 3 2 3": "dashdotted" };
  const list = (points) => points.map(([a, b]) => `(${a},${Number(b.toPrecision(6))})`).join(" ");
  const lines = [`% ${title}`, "\\begin{tikzpicture}", `\\begin{axis}[title={${tex(title)}}, xlabel={${tex(x)}}, ylabel={${tex(y)}}, legend pos=outer north east]`];
  for (const s of series) {
    const band = s.points.filter((p) => p[2] !== null);
    if (band.length > 1) lines.push(`\\addplot[draw=none, forget plot, fill=${colour(s)}, fill opacity=0.2] coordinates {${list([...band.map((p) => [p[0], p[3]]), ...band.map((p) => [p[0], p[2]]).reverse()])}} -- cycle;`);
    for (const one of s.seeds ?? []) lines.push(`\\addplot[${style[s.dash]}, thin, forget plot, color=${colour(s)}, opacity=0.4] coordinates {${list(one)}};`);
    lines.push(`\\addplot[${style[s.dash]}, thick, color=${colour(s)}] coordinates {${list(s.points)}};`, `\\addlegendentry{${tex(s.name)}}`);
  }
  return [...lines, "\\end{axis}", "\\end{tikzpicture}", ""].join("\n");
}

/** Estimates with intervals [{name, value, low, high}] as a table. */
function intervalsLatex(title, rows, digits) {
  const cell = (r) => `${fixed(r.value, digits)} ${r.low === null || r.low === r.high ? "[n/a]" : `[${fixed(r.low, digits)}, ${fixed(r.high, digits)}]`}`;
  return [`% ${title}`, "\\begin{tabular}{lr}", "\\toprule", ...rows.map((r) => line([tex(r.name), cell(r)])), "\\bottomrule", "\\end{tabular}", ""].join("\n");
}

/** Copies, and shows what was copied where the clipboard is out of reach. */
async function copy(text) {
  const dialog = openDialog("LaTeX", make("textarea", { readonly: "", rows: 16, text, "aria-label": "LaTeX" }));
  const area = $("textarea", dialog);
  area.select();
  let done = false;
  try {
    await navigator.clipboard.writeText(text);
    done = true;
  } catch {
    done = document.execCommand("copy");
  }
  area.after(make("p", { class: "copied", text: done ? "Copied." : "Not copied. Select the text and copy it." }));
}

const copyButton = (text) => make("button", { class: "copy", title: "copy as LaTeX", text: "LaTeX", on: () => copy(text()) });
