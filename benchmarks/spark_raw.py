"""`python -m benchmarks.spark_raw`: see spark/raw.py."""

from benchmarks.spark.raw import main

if __name__ == "__main__":
    main()
