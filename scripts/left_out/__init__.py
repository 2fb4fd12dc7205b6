"""The planner's measured constants, set again without a part of their starts."""
