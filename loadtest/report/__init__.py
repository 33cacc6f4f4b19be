"""Results for people and for continuous integration: terminal, HTML page, CSV, JUnit."""
