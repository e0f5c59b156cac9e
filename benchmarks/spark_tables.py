"""`python -m benchmarks.spark_tables`: see spark/tables.py."""

from benchmarks.spark.tables import main

if __name__ == "__main__":
    main()
