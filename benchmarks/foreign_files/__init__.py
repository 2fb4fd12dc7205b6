"""Files as an attacker would write them, and what reading them costs those who ask the API meanwhile."""
