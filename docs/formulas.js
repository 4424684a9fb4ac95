// Draws each formula with KaTeX in place of its MathML, which readers without scripts see.
for (const place of document.querySelectorAll(".formula[data-tex]")) {
  katex.render(place.dataset.tex, place, { displayMode: true, strict: "ignore" });
}
