"""The gate for CI: a verdict per comparison, as text, JUnit and Markdown."""
