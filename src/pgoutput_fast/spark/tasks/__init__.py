"""Code for the executors. Modules of this folder import no PySpark."""
