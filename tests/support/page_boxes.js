// What is out of its place on a page, also inside open shadow roots: a list of words. For browser.looks.
() => {
  const found = new Set();
  const name = (one) => `${one.tagName.toLowerCase()}${one.id && `#${one.id}`}${[...one.classList].map((part) => `.${part}`).join("")}`;
  const childrenOf = (one) => [...(one.shadowRoot ?? one).children];
  const SKIPPED = "svg, option, script, style, link, template, .sortoptions, .unseen, .skip-to-content-link, br";

  function boxOf(one) {
    const style = getComputedStyle(one);
    const apart = one.matches(SKIPPED) || !one.checkVisibility({ visibilityProperty: true }) || /absolute|fixed/.test(style.position);
    return apart || /inline|contents|table-/.test(style.display) ? null : one.getBoundingClientRect();
  }

  function look(one, isClipped) {
    const style = getComputedStyle(one);
    const clips = isClipped || style.overflowX !== "visible";
    const boxes = childrenOf(one).map((child) => [child, boxOf(child)]).filter(([, box]) => box?.width > 1 && box.height > 1);
    for (const [place, [child, box]] of boxes.entries()) {
      if (!clips && (box.right > innerWidth + 1 || box.left < -1)) found.add(`outside of the window: ${name(child)}`);
      for (const [other, edge] of boxes.slice(place + 1)) {
        const [wide, high] = [Math.min(box.right, edge.right) - Math.max(box.left, edge.left), Math.min(box.bottom, edge.bottom) - Math.max(box.top, edge.top)];
        if (wide > 1 && high > 1) found.add(`${name(child)} lies over ${name(other)}`);
      }
    }
    for (const child of childrenOf(one)) if (!child.matches(SKIPPED)) look(child, clips);
  }

  const { scrollWidth, clientWidth } = document.documentElement;
  if (scrollWidth > clientWidth) found.add(`${scrollWidth} px in a window of ${clientWidth}`);
  look(document.body, false);
  return [...found];
}
