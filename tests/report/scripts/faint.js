// Returns texts whose contrast with what is behind them is below 4.5, as WCAG 2.1 computes it.
const rgb = (text) => text.match(/[\d.]+/g).map(Number);
const linear = (value) => (value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
const luminance = ([red, green, blue]) => 0.2126 * linear(red / 255) + 0.7152 * linear(green / 255) + 0.0722 * linear(blue / 255);
function behind(one) {
  for (; one; one = one.parentElement) {
    const colour = rgb(getComputedStyle(one).backgroundColor);
    if (colour[3] !== 0) return colour;
  }
  return [255, 255, 255];
}
const hasText = (one) => [...one.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
const found = [];
for (const one of document.querySelectorAll("body *:not(svg *):not(script)")) {
  if (!hasText(one) || !one.checkVisibility()) continue;
  const [a, b] = [luminance(rgb(getComputedStyle(one).color)), luminance(behind(one))];
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (ratio < 4.5) found.push([one.tagName, one.className, one.textContent.slice(0, 30), ratio]);
}
return found;
