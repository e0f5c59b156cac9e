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
 * Runs Debezium's own decoder, without its engine, over a file of messages:
 * `DebeziumDecoder FILE messages|values HOST PORT USER DATABASE`. worker.py describes the commands and the answers.
 *
 * The decoder asks a server for the primary key and the nullable columns of each relation. So the server must have the
 * tables. With `messages`, this reads only the messages. With `values`, it also gets the value of every column, as
 * Debezium's connector does for each change that it sends.
 */
public class DebeziumDecoder {
    /** The constructor of PostgresSchema is protected, so only a subclass can call it. */
    static class Schema extends PostgresSchema {
        Schema(PostgresConnectorConfig config, Configuration settings, PostgresConnection connection,
                PostgresValueConverter values) {
            super(new CdcSourceTaskContext<>(settings, config, Map.of()), connection.getDefaultValueConverter(),
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
    static boolean withValues;
    static long rows;
    static long unreadBytes;
    // The compiler may remove a computation whose result nobody uses. So each result is stored here.
    static Object lastResult;

    public static void main(String[] arguments) throws Exception {
        file = Files.readAllBytes(Path.of(arguments[0]));
        withValues = arguments[1].equals("values");
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
            decode(DebeziumDecoder::count);
            System.out.println("{\"cpu\": " + (system.getProcessCpuTime() - cpu) / 1e9 + ", \"wall\": "
                    + (System.nanoTime() - wall) / 1e9 + ", \"rows\": " + rows + "}");
        }
        System.exit(0);
    }

    static void connect(String host, String port, String user, String database) throws Exception {
        Configuration settings = Configuration.create()
                .with("topic.prefix", "peers").with("plugin.name", "pgoutput")
                .with("database.hostname", host).with("database.port", port).with("database.user", user)
                .with("database.password", "none").with("database.dbname", database).build();
        PostgresConnectorConfig config = new PostgresConnectorConfig(settings);
        types = PostgresConnection.createTypeRegistry(config.getJdbcConfig());
        connection = new PostgresConnection(config, types, PostgresConnection.CONNECTION_GENERAL);
        PostgresValueConverter converter = PostgresValueConverter.of(config, StandardCharsets.UTF_8, types);
        decoder = new PgOutputMessageDecoder(
                new MessageDecoderContext(config, new Schema(config, settings, connection, converter)), connection);
    }

    static void decode(ReplicationMessageProcessor processor) throws Exception {
        ByteBuffer all = ByteBuffer.wrap(file);
        while (all.hasRemaining()) {
            int length = all.getInt();
            ByteBuffer message = all.slice(all.position(), length);
            all.position(all.position() + length);
            boolean truncate = message.get(0) == 'T';
            decoder.processMessage(message, processor, types);
            // With its default settings, the decoder does not read Truncate messages.
            unreadBytes += truncate ? 0 : message.remaining();
        }
    }

    /** The columns of the new row; null if the message has no row, as Begin and Commit. */
    static List<ReplicationMessage.Column> newRow(ReplicationMessage message) {
        ReplicationMessage.Operation operation = message.getOperation();
        if (operation == ReplicationMessage.Operation.BEGIN || operation == ReplicationMessage.Operation.COMMIT) {
            return null;
        }
        return message.getNewTupleList();
    }

    static void count(ReplicationMessage message) throws java.sql.SQLException {
        List<ReplicationMessage.Column> columns = newRow(message);
        if (columns == null) {
            return;
        }
        rows++;
        lastResult = columns;
        if (withValues) {
            BaseConnection base = (BaseConnection) connection.connection();
            for (ReplicationMessage.Column column : columns) {
                lastResult = column.getValue(() -> base, false);
            }
        }
    }

    /** Writes a line of JSON for each row: [table, [values]]. Each value is text or null. */
    static void dump(String path) throws Exception {
        try (PrintWriter out = new PrintWriter(Path.of(path, "rows").toFile(), StandardCharsets.UTF_8)) {
            BaseConnection base = (BaseConnection) connection.connection();
            decode(message -> {
                List<ReplicationMessage.Column> columns = newRow(message);
                if (columns == null) {
                    return;
                }
                String table = message.getTable().replace("\"", "");
                StringBuilder row = new StringBuilder("[").append(quoted(table)).append(", [");
                String separator = "";
                for (ReplicationMessage.Column column : columns) {
                    row.append(separator).append(quoted(text(column.getValue(() -> base, false))));
                    separator = ", ";
                }
                out.println(row.append("]]"));
            });
        }
        if (unreadBytes != 0) {
            throw new IllegalStateException(unreadBytes + " bytes of messages were not read");
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
