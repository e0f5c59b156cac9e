"""Real PostgreSQL servers and a Java for Spark, for the demo and the tests."""
