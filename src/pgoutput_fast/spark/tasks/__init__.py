"""What runs on the executors. Modules of this folder import no PySpark."""
