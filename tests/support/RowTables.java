import java.io.IOException;
import java.io.ObjectInputStream;
import java.io.ObjectOutputStream;
import java.io.Serializable;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.connector.catalog.CatalogV2Util;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.NamespaceChange;
import org.apache.spark.sql.connector.catalog.SupportsNamespaces;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsRowLevelOperations;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.catalog.TruncatableTable;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.RowLevelOperation;
import org.apache.spark.sql.connector.write.RowLevelOperationBuilder;
import org.apache.spark.sql.connector.write.RowLevelOperationInfo;
import org.apache.spark.sql.connector.write.SupportsTruncate;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

import scala.Option;
import scala.jdk.javaapi.CollectionConverters;

/**
 * A catalog of small tables with MERGE for the tests: each table is a file. Spark itself has no such table, and the jars of
 * Delta and Iceberg cannot be installed from PyPI. Each write replaces the file, so there is one writer at a time.
 */
public class RowTables implements TableCatalog, SupportsNamespaces {
    private String name;
    private Path root;

    @Override
    public void initialize(String name, CaseInsensitiveStringMap options) {
        this.name = name;
        this.root = Path.of(options.get("root"));
    }

    @Override
    public String name() {
        return name;
    }

    private Path fileOf(Identifier table) {
        return root.resolve(String.join(".", table.namespace()) + "." + table.name());
    }

    @Override
    public Identifier[] listTables(String[] namespace) {
        String prefix = String.join(".", namespace) + ".";
        String[] files = root.toFile().list((directory, file) -> file.startsWith(prefix));
        return Arrays.stream(files == null ? new String[0] : files)
            .map(file -> Identifier.of(namespace, file.substring(prefix.length())))
            .toArray(Identifier[]::new);
    }

    @Override
    public Table loadTable(Identifier table) throws NoSuchTableException {
        if (!Files.exists(fileOf(table))) {
            throw new NoSuchTableException(table);
        }
        return new RowTable(table.toString(), fileOf(table));
    }

    @Override
    public Table createTable(Identifier table, Column[] columns, Transform[] partitions, Map<String, String> properties) {
        new Rows(CatalogV2Util.v2ColumnsToStructType(columns), properties, List.of()).write(fileOf(table));
        return new RowTable(table.toString(), fileOf(table));
    }

    @Override
    public Table alterTable(Identifier table, TableChange... changes) throws NoSuchTableException {
        loadTable(table);
        Rows rows = Rows.read(fileOf(table));
        var all = CollectionConverters.asScala(Arrays.asList(changes)).toSeq();
        StructType schema = CatalogV2Util.applySchemaChanges(rows.schema, all, Option.empty(), "ALTER TABLE");
        Map<String, String> properties = CatalogV2Util.applyPropertiesChanges(rows.properties, all);
        rows.with(schema, new HashMap<>(properties)).write(fileOf(table));
        return loadTable(table);
    }

    @Override
    public boolean dropTable(Identifier table) {
        return fileOf(table).toFile().delete();
    }

    @Override
    public void renameTable(Identifier before, Identifier after) {
        throw new UnsupportedOperationException();
    }

    @Override
    public String[][] listNamespaces() {
        return new String[][] {{"public"}};
    }

    @Override
    public String[][] listNamespaces(String[] namespace) {
        return namespace.length == 0 ? listNamespaces() : new String[0][];
    }

    @Override
    public Map<String, String> loadNamespaceMetadata(String[] namespace) {
        return Map.of();
    }

    @Override
    public void createNamespace(String[] namespace, Map<String, String> metadata) {}

    @Override
    public void alterNamespace(String[] namespace, NamespaceChange... changes) {}

    @Override
    public boolean dropNamespace(String[] namespace, boolean cascade) {
        return false;
    }

    /** What the file of a table has. */
    static final class Rows implements Serializable {
        final StructType schema;
        final HashMap<String, String> properties;
        final ArrayList<UnsafeRow> rows;

        Rows(StructType schema, Map<String, String> properties, List<UnsafeRow> rows) {
            this.schema = schema;
            this.properties = new HashMap<>(properties);
            this.rows = new ArrayList<>(rows);
        }

        static Rows read(Path file) {
            try (var in = new ObjectInputStream(Files.newInputStream(file))) {
                return (Rows) in.readObject();
            } catch (IOException problem) {
                throw new UncheckedIOException(problem);
            } catch (ClassNotFoundException problem) {
                throw new IllegalStateException(problem);
            }
        }

        void write(Path file) {
            Path hidden = file.resolveSibling("." + file.getFileName());
            try {
                Files.createDirectories(file.getParent());
                try (var out = new ObjectOutputStream(Files.newOutputStream(hidden))) {
                    out.writeObject(this);
                }
                Files.move(hidden, file, StandardCopyOption.ATOMIC_MOVE);
            } catch (IOException problem) {
                throw new UncheckedIOException(problem);
            }
        }

        /** The same rows with other columns: new ones are null. */
        Rows with(StructType columns, Map<String, String> properties) {
            UnsafeProjection project = UnsafeProjection.create(columns);
            List<UnsafeRow> fitted = new ArrayList<>();
            for (UnsafeRow row : rows) {
                Object[] values = new Object[columns.size()];
                for (int k = 0; k < values.length; k++) {
                    Option<Object> at = schema.getFieldIndex(columns.apply(k).name());
                    DataType type = columns.apply(k).dataType();
                    values[k] = at.isEmpty() ? null : row.get((Integer) at.get(), type);
                }
                fitted.add(project.apply(new GenericInternalRow(values)).copy());
            }
            return new Rows(columns, properties, fitted);
        }
    }

    static final class RowTable implements SupportsRead, SupportsWrite, SupportsRowLevelOperations, TruncatableTable {
        private final String name;
        private final Path file;
        private final Rows rows;

        RowTable(String name, Path file) {
            this.name = name;
            this.file = file;
            this.rows = Rows.read(file);
        }

        @Override
        public String name() {
            return name;
        }

        @Override
        public StructType schema() {
            return rows.schema;
        }

        @Override
        public Map<String, String> properties() {
            return rows.properties;
        }

        @Override
        public Set<TableCapability> capabilities() {
            return Set.of(TableCapability.BATCH_READ, TableCapability.BATCH_WRITE, TableCapability.TRUNCATE);
        }

        @Override
        public boolean truncateTable() {
            new Rows(rows.schema, rows.properties, List.of()).write(file);
            return true;
        }

        @Override
        public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
            return () -> new RowScan(file, rows.schema);
        }

        @Override
        public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
            return new RowWrite(file, info.schema(), false);
        }

        @Override
        public RowLevelOperationBuilder newRowLevelOperationBuilder(RowLevelOperationInfo info) {
            return () -> new RowLevelOperation() {
                @Override
                public Command command() {
                    return info.command();
                }

                @Override
                public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
                    return RowTable.this.newScanBuilder(options);
                }

                @Override
                public WriteBuilder newWriteBuilder(LogicalWriteInfo written) {
                    return new RowWrite(file, written.schema(), true);
                }
            };
        }
    }

    record Part(ArrayList<UnsafeRow> rows) implements InputPartition, WriterCommitMessage {}

    record RowScan(Path file, StructType readSchema) implements Scan, Batch {
        @Override
        public Batch toBatch() {
            return this;
        }

        @Override
        public InputPartition[] planInputPartitions() {
            return new InputPartition[] {new Part(Rows.read(file).rows)};
        }

        @Override
        public PartitionReaderFactory createReaderFactory() {
            return partition -> new Reader(((Part) partition).rows);
        }
    }

    static final class Reader implements PartitionReader<InternalRow> {
        private final List<UnsafeRow> rows;
        private int at = -1;

        Reader(List<UnsafeRow> rows) {
            this.rows = rows;
        }

        @Override
        public boolean next() {
            return ++at < rows.size();
        }

        @Override
        public InternalRow get() {
            return rows.get(at);
        }

        @Override
        public void close() {}
    }

    static final class RowWrite implements WriteBuilder, SupportsTruncate, Write, BatchWrite {
        private final Path file;
        private final StructType schema;
        private boolean replace;

        RowWrite(Path file, StructType schema, boolean replace) {
            this.file = file;
            this.schema = schema;
            this.replace = replace;
        }

        @Override
        public WriteBuilder truncate() {
            replace = true;
            return this;
        }

        @Override
        public Write build() {
            return this;
        }

        @Override
        public BatchWrite toBatch() {
            return this;
        }

        @Override
        public DataWriterFactory createBatchWriterFactory(PhysicalWriteInfo info) {
            StructType written = schema;
            return (partition, task) -> new Writer(UnsafeProjection.create(written));
        }

        @Override
        public void commit(WriterCommitMessage[] messages) {
            Rows before = Rows.read(file);
            List<UnsafeRow> rows = replace ? new ArrayList<>() : before.rows;
            for (WriterCommitMessage message : messages) {
                rows.addAll(((Part) message).rows);
            }
            new Rows(before.schema, before.properties, rows).write(file);
        }

        @Override
        public void abort(WriterCommitMessage[] messages) {}
    }

    static final class Writer implements DataWriter<InternalRow> {
        private final UnsafeProjection project;
        private final ArrayList<UnsafeRow> rows = new ArrayList<>();

        Writer(UnsafeProjection project) {
            this.project = project;
        }

        @Override
        public void write(InternalRow row) {
            rows.add(project.apply(row).copy());
        }

        @Override
        public WriterCommitMessage commit() {
            return new Part(rows);
        }

        @Override
        public void abort() {}

        @Override
        public void close() {}
    }
}
