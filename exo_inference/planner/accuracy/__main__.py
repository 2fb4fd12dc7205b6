"""`python -m exo_inference.planner.accuracy --cases CASES.json --write PAGE.md`."""

from exo_inference.planner.accuracy.page import main

if __name__ == "__main__":
    raise SystemExit(main())
