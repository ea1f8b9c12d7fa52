/* What is wrong with a page of the admin as it is shown at present: a list of words. See admin_walk.py. */
() => {
  const found = [];
  const main = document.querySelector("#content-main") || document.querySelector("main") || document.body;

  // ------------------------------------------------------------------------------------------------------- colours

  const known = new Map();
  const pen = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });

  function rgba(colour) {
    if (!known.has(colour)) {
      pen.clearRect(0, 0, 1, 1);
      pen.fillStyle = colour;
      pen.fillRect(0, 0, 1, 1);
      const [red, green, blue, alpha] = pen.getImageData(0, 0, 1, 1).data;
      known.set(colour, [red, green, blue, alpha / 255]);
    }
    return known.get(colour);
  }

  function over(front, back) {
    return [0, 1, 2].map(part => front[part] * front[3] + back[part] * (1 - front[3])).concat(1);
  }

  function behind(element) {
    const layers = [];
    for (let one = element; one; one = one.parentElement) {
      layers.push(rgba(getComputedStyle(one).backgroundColor));
      if (layers.at(-1)[3] === 1) break;
    }
    return layers.reverse().reduce((back, front) => over(front, back), [255, 255, 255, 1]);
  }

  function luminance(colour) {
    const linear = part => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    const [red, green, blue] = colour.map(part => linear(part / 255));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  }

  function contrast(one, other) {
    const [light, dark] = [luminance(one), luminance(other)].sort((a, b) => b - a);
    return (light + 0.05) / (dark + 0.05);
  }

  // ------------------------------------------------------------------------------------------------------ elements

  function say(what, element, text) {
    const classes = [...element.classList].filter(one => one.startsWith("ravi")).map(one => "." + one);
    const words = (text || element.textContent || element.value || "").trim().replace(/\s+/g, " ").slice(0, 50);
    found.push(`${what}: ${element.tagName.toLowerCase()}${classes.join("")} ${words}`);
  }

  function shows(element) {
    const box = element.getBoundingClientRect();
    return element.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true }) && box.width > 1;
  }

  function checkWidth() {
    if (document.documentElement.scrollWidth <= innerWidth + 1) return;
    const wide = [...document.querySelectorAll("body *")].filter(shows);
    const last = wide.filter(one => one.getBoundingClientRect().right > innerWidth + 1).at(-1);
    say(`${document.documentElement.scrollWidth} px wide`, last || document.body);
  }

  const APART = "script, option, svg, .ravi-nothing, .object-tools, .material-symbols-outlined, details:not([open])";

  function isOurs(element) {
    if (element.matches(APART) || element.closest("script, option, svg, .ravi-nothing, .object-tools")) return false;
    const nearest = element.closest('form[id$=_form], [class*="ravi-"], .ravi, #result_list');
    return !nearest.matches("form"); // the theme's own, with parts of ours
  }

  function checkTexts(place) {
    const texts = document.createTreeWalker(place, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
      const node = texts.currentNode, element = node.parentElement;
      if (!node.data.trim() || !isOurs(element) || !shows(element)) continue;
      checkContrast(node, element);
      checkCut(node, element);
    }
  }

  function checkContrast(node, element) {
    const back = behind(element), ink = rgba(getComputedStyle(element).color);
    let shade = ink[3];
    for (let one = element; one; one = one.parentElement) shade *= getComputedStyle(one).opacity;
    const ratio = contrast(over([...ink.slice(0, 3), shade], back), back);
    if (ratio < 4.5 && !element.closest(":disabled")) say(`contrast ${ratio.toFixed(2)}`, element, node.data);
  }

  function checkCut(node, element) {
    const range = document.createRange();
    range.selectNodeContents(node);
    const box = range.getBoundingClientRect();
    for (let one = element; one && one !== document.body; one = one.parentElement) {
      const style = getComputedStyle(one), edge = one.getBoundingClientRect();
      const scrolls = /auto|scroll/.test(style.overflowX + style.overflowY) || one.matches("[class*=simplebar]");
      if (scrolls || style.webkitLineClamp !== "none") return;
      const leaves = box.right > edge.right + 1 || box.bottom > edge.bottom + 1;
      if (style.overflowX !== "visible" && leaves) return say("cut off", element, node.data);
    }
  }

  function checkField(field) {
    const style = getComputedStyle(field);
    const framed = parseFloat(style.borderBottomWidth) > 0 && rgba(style.borderBottomColor)[3] > 0;
    const filled = contrast(behind(field), behind(field.parentElement)) > 1.05;
    if (!framed && !filled && style.boxShadow === "none") say("undressed", field, field.name);
    if (contrast(rgba(style.color), behind(field)) < 4.5) say("contrast of a field", field, field.name);
  }

  function checkButton(button) {
    button.scrollIntoView({ block: "center", behavior: "instant" });
    const box = button.getBoundingClientRect();
    const top = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
    if (top && !button.contains(top)) say(`under ${top.tagName}.${top.className}`, button);
    const style = getComputedStyle(button), framed = parseFloat(style.borderBottomWidth) > 0;
    const words = (button.textContent || button.value || "").trim(); // none: an icon
    if (words && !framed && rgba(style.backgroundColor)[3] === 0) say("a button like text", button);
  }

  function checkLink(link) {
    const style = getComputedStyle(link), around = getComputedStyle(link.parentElement);
    const marked = style.textDecorationLine !== "none" || parseFloat(style.borderBottomWidth) > 0;
    const filled = rgba(style.backgroundColor)[3] > 0;
    if (!marked && !filled && style.color === around.color) say("a link like text", link);
  }

  checkWidth();
  document.querySelectorAll(".ravi, #result_list tbody, .ravi-live").forEach(checkTexts);
  const fields = main.querySelectorAll("input:not([type=hidden], [name=q]), select, textarea");
  [...fields].filter(one => shows(one) && !/submit|checkbox|radio/.test(one.type)).forEach(checkField);
  const buttons = document.querySelectorAll(".ravi :is(button, input[type=submit], a.button), input[name=_save], button[name=_save], .ravi-tools a");
  [...buttons].filter(one => shows(one) && !one.closest(".ravi-nothing")).forEach(checkButton);
  const links = [...document.querySelectorAll(".ravi a[href]")];
  links.filter(link => shows(link) && link.textContent.trim()).forEach(checkLink);
  scrollTo(0, 0);
  return [...new Set(found)];
}
