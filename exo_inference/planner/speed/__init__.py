"""How fast plans would be, and what that rests on."""
