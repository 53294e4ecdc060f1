// Returns the beginnings of elements that a screen reader could not name.
const named = (one) =>
  one.getAttribute("aria-label") ||
  one.getAttribute("aria-labelledby") ||
  one.textContent.trim() ||
  (one.labels && one.labels.length);
const all = "button, input, select, svg[role=img], [role=region], [role=tabpanel], table";
return [...document.querySelectorAll(all)].filter((one) => !named(one)).map((one) => one.outerHTML.slice(0, 80));
