"""How much of which sequence a step computes."""
