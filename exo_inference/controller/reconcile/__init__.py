"""Makes what runs match what is stored: decides, does one step, writes the status."""
