import com.sun.management.OperatingSystemMXBean;
import io.debezium.config.Configuration;
import io.debezium.connector.common.CdcSourceTaskContext;
import io.debezium.connector.postgresql.PostgresConnectorConfig;
import io.debezium.connector.postgresql.PostgresSchema;
import io.debezium.connector.postgresql.PostgresValueConverter;
import io.debezium.connector.postgresql.TypeRegistry;
import io.debezium.connector.postgresql.connection.MessageDecoder;
import io.debezium.connector.postgresql.connection.MessageDecoderContext;
import io.debezium.connector.postgresql.connection.PostgresConnection;
import io.debezium.connector.postgresql.connection.ReplicationMessage;
import io.debezium.connector.postgresql.connection.ReplicationStream.ReplicationMessageProcessor;
import io.debezium.connector.postgresql.connection.pgoutput.PgOutputMessageDecoder;
import io.debezium.relational.CustomConverterRegistry;
import io.debezium.relational.TableId;
import io.debezium.schema.SchemaTopicNamingStrategy;
import io.debezium.spi.topic.TopicNamingStrategy;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintWriter;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.postgresql.core.BaseConnection;

/**
 * Debezium's own decoder over a file of messages, without its engine: `DebeziumDecoder FILE messages|values HOST PORT USER DATABASE`.
 *
 * The decoder asks a server for the keys and optional columns of each relation that it meets, so there must be one that has
 * the tables. With `values` every column's value is taken as well, as the connector does for each change that it sends on.
 */
public class DebeziumDecoder {
    /** Its constructor is for subclasses. */
    static class Schema extends PostgresSchema {
        Schema(PostgresConnectorConfig config, Configuration given, PostgresConnection connection, PostgresValueConverter values) {
            super(new CdcSourceTaskContext<>(given, config, Map.of()), connection.getDefaultValueConverter(),
                    topics(), values, new CustomConverterRegistry(List.of()));
        }

        @SuppressWarnings("unchecked")
        private static TopicNamingStrategy<TableId> topics() {
            Properties properties = new Properties();
            properties.setProperty("topic.prefix", "peers");
            return (TopicNamingStrategy<TableId>) (TopicNamingStrategy<?>) new SchemaTopicNamingStrategy(properties);
        }
    }

    static PostgresConnection connection;
    static TypeRegistry types;
    static MessageDecoder decoder;
    static byte[] file;
    static boolean values;
    static long rows;
    static long unread;
    // So that what is taken is not found to be unused.
    static Object last;

    public static void main(String[] arguments) throws Exception {
        file = Files.readAllBytes(Path.of(arguments[0]));
        values = arguments[1].equals("values");
        connect(arguments[2], arguments[3], arguments[4], arguments[5]);
        OperatingSystemMXBean system = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("{}");
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            if (line.startsWith("dump ")) {
                dump(line.substring(5));
                System.out.println("{}");
                continue;
            }
            rows = 0;
            long cpu = system.getProcessCpuTime();
            long wall = System.nanoTime();
            decode(DebeziumDecoder::take);
            System.out.println("{\"cpu\": " + (system.getProcessCpuTime() - cpu) / 1e9 + ", \"wall\": "
                    + (System.nanoTime() - wall) / 1e9 + ", \"rows\": " + rows + "}");
        }
        System.exit(0);
    }

    static void connect(String host, String port, String user, String database) throws Exception {
        Configuration given = Configuration.create()
                .with("topic.prefix", "peers").with("plugin.name", "pgoutput")
                .with("database.hostname", host).with("database.port", port).with("database.user", user)
                .with("database.password", "none").with("database.dbname", database).build();
        PostgresConnectorConfig config = new PostgresConnectorConfig(given);
        types = PostgresConnection.createTypeRegistry(config.getJdbcConfig());
        connection = new PostgresConnection(config, types, PostgresConnection.CONNECTION_GENERAL);
        PostgresValueConverter converter = PostgresValueConverter.of(config, StandardCharsets.UTF_8, types);
        decoder = new PgOutputMessageDecoder(
                new MessageDecoderContext(config, new Schema(config, given, connection, converter)), connection);
    }

    static void decode(ReplicationMessageProcessor processor) throws Exception {
        ByteBuffer all = ByteBuffer.wrap(file);
        while (all.hasRemaining()) {
            int length = all.getInt();
            ByteBuffer message = all.slice(all.position(), length);
            all.position(all.position() + length);
            boolean truncate = message.get(0) == 'T';
            decoder.processMessage(message, processor, types);
            // As it is set up when nothing else is said, it skips them.
            unread += truncate ? 0 : message.remaining();
        }
    }

    static void take(ReplicationMessage message) throws java.sql.SQLException {
        List<ReplicationMessage.Column> columns = message.getOperation() == ReplicationMessage.Operation.BEGIN
                || message.getOperation() == ReplicationMessage.Operation.COMMIT ? null : message.getNewTupleList();
        if (columns == null) {
            return;
        }
        rows++;
        last = columns;
        if (values) {
            BaseConnection base = (BaseConnection) connection.connection();
            for (ReplicationMessage.Column column : columns) {
                last = column.getValue(() -> base, false);
            }
        }
    }

    /** A line of JSON for each row: [table, [values]], each value as its text or null. */
    static void dump(String path) throws Exception {
        try (PrintWriter out = new PrintWriter(Path.of(path, "rows").toFile(), StandardCharsets.UTF_8)) {
            BaseConnection base = (BaseConnection) connection.connection();
            decode(message -> {
                if (message.getOperation() == ReplicationMessage.Operation.BEGIN
                        || message.getOperation() == ReplicationMessage.Operation.COMMIT || message.getNewTupleList() == null) {
                    return;
                }
                StringBuilder row = new StringBuilder("[").append(quoted(message.getTable().replace("\"", ""))).append(", [");
                String between = "";
                for (ReplicationMessage.Column column : message.getNewTupleList()) {
                    row.append(between).append(quoted(text(column.getValue(() -> base, false))));
                    between = ", ";
                }
                out.println(row.append("]]"));
            });
        }
        if (unread != 0) {
            throw new IllegalStateException(unread + " bytes of messages were not read");
        }
    }

    static String text(Object value) {
        if (value instanceof byte[] bytes) {
            return java.util.HexFormat.of().formatHex(bytes);
        }
        return value == null ? null : value.getClass().getSimpleName() + " " + value;
    }

    static String quoted(String text) {
        if (text == null) {
            return "null";
        }
        StringBuilder out = new StringBuilder("\"");
        for (char each : text.toCharArray()) {
            if (each == '"' || each == '\\') {
                out.append('\\').append(each);
            } else if (each < 32) {
                out.append(String.format("\\u%04x", (int) each));
            } else {
                out.append(each);
            }
        }
        return out.append('"').toString();
    }
}
