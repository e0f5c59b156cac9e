"""`python -m benchmarks.spark_many`: see spark/many.py."""

from benchmarks.spark.many import main

if __name__ == "__main__":
    main()
