"""Tables in a lake, written by the executors: their columns never cross the JVM."""
