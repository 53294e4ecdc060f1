"""How a failing program becomes small: ``reducer`` tries ``edits``, each of which makes ``candidates``."""
