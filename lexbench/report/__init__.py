"""From numbers to pages: tables, plots, leaderboards, verdicts. Import what you need from its modules."""
