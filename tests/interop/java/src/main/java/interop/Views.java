package interop;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.CryptoKeyReader;
import org.apache.pulsar.client.api.EncryptionKeyInfo;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.MessageIdAdv;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.TableView;

/**
 * Sends to compacted topics and tells what is seen of them.
 * tests/interop/compacted_by_clients.py starts it and tells what its lines mean.
 */
public final class Views {
    private static final int PATIENCE_SECONDS = 30;
    private static final HexFormat HEX = HexFormat.of();

    private final PulsarClient client;
    private final CryptoKeyReader keys;

    private Views(PulsarClient client, Path folder) throws IOException {
        this.client = client;
        byte[] open = Files.readAllBytes(folder.resolve("public.pem"));
        byte[] closed = Files.readAllBytes(folder.resolve("private.pem"));
        keys = new CryptoKeyReader() {
            @Override
            public EncryptionKeyInfo getPublicKey(String name, Map<String, String> metadata) {
                return new EncryptionKeyInfo(open, Map.of());
            }

            @Override
            public EncryptionKeyInfo getPrivateKey(String name, Map<String, String> metadata) {
                return new EncryptionKeyInfo(closed, Map.of());
            }
        };
    }

    private static String told(MessageId id) {
        return HEX.formatHex(id.toByteArray());
    }

    private static String told(Message<byte[]> message) {
        String value = message.getData() == null ? "" : new String(message.getData(), StandardCharsets.UTF_8);
        return (message.hasKey() ? message.getKey() : "") + "=" + value + "=" + told(message.getMessageId());
    }

    private static MessageId id(String word) throws IOException {
        return MessageId.fromByteArray(HEX.parseHex(word));
    }

    private static boolean same(MessageId one, MessageId other) {
        MessageIdAdv a = (MessageIdAdv) one, b = (MessageIdAdv) other;
        return a.getLedgerId() == b.getLedgerId() && a.getEntryId() == b.getEntryId()
                && Math.max(a.getBatchIndex(), 0) == Math.max(b.getBatchIndex(), 0);
    }

    private List<String> send(String topic, String codec, String kind, List<String> pairs) throws Exception {
        ProducerBuilder<byte[]> builder = client.newProducer().topic(topic).compressionType(CompressionType.valueOf(codec))
                .enableBatching(kind.endsWith("batch")).batchingMaxMessages(1000)
                .batchingMaxPublishDelay(1, TimeUnit.MINUTES);
        if (kind.equals("chunks")) {
            builder.enableChunking(true).chunkMaxMessageSize(1000);
        }
        if (kind.startsWith("sealed")) {
            builder.addEncryptionKey("k").cryptoKeyReader(keys);
        }
        List<String> ids = new ArrayList<>();
        try (Producer<byte[]> producer = builder.create()) {
            List<CompletableFuture<MessageId>> sent = new ArrayList<>();
            for (String pair : pairs) {
                String[] parts = pair.split("=", 2);
                var message = producer.newMessage().value(parts[1].isEmpty() ? null : parts[1].getBytes());
                sent.add((parts[0].isEmpty() ? message : message.key(parts[0])).sendAsync());
            }
            producer.flush();
            for (var each : sent) {
                ids.add(told(each.get(PATIENCE_SECONDS, TimeUnit.SECONDS)));
            }
        }
        return ids;
    }

    /** What a reader gets from the start, or after a seek. */
    private List<String> view(String topic, List<String> seek) throws Exception {
        List<String> found = new ArrayList<>();
        try (Reader<byte[]> reader = client.newReader().topic(topic).readCompacted(true).cryptoKeyReader(keys)
                .startMessageId(seek.isEmpty() ? MessageId.earliest : MessageId.latest).create()) {
            if (!seek.isEmpty()) {
                reader.seek(id(seek.get(0)));
            }
            while (reader.hasMessageAvailable()) {
                found.add(told(reader.readNext(PATIENCE_SECONDS, TimeUnit.SECONDS)));
            }
        }
        return found;
    }

    private List<String> last(String topic) throws Exception {
        try (Reader<byte[]> reader = client.newReader().topic(topic).readCompacted(true).cryptoKeyReader(keys)
                .startMessageId(MessageId.earliest).create()) {
            return List.of(told(reader.getLastMessageIds().get(0)));
        }
    }

    private List<String> table(String topic) throws Exception {
        try (TableView<byte[]> view = client.newTableView().topic(topic).create()) {
            return view.entrySet().stream().map(each -> each.getKey() + "=" + new String(each.getValue())).sorted().toList();
        }
    }

    /** What a durable subscription gets up to a message. It may be set to a time, and acknowledges up to a message. */
    private List<String> consume(String topic, String name, String until, long millis, String acked) throws Exception {
        List<String> found = new ArrayList<>();
        try (Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName(name).readCompacted(true)
                .subscriptionType(SubscriptionType.Failover).cryptoKeyReader(keys).isAckReceiptEnabled(true)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe()) {
            if (millis > 0) {
                consumer.seek(millis);
            }
            MessageId end = id(until);
            while (true) {
                Message<byte[]> message = consumer.receive(PATIENCE_SECONDS, TimeUnit.SECONDS);
                found.add(told(message));
                if (!acked.equals("-") && same(message.getMessageId(), id(acked))) {
                    consumer.acknowledgeCumulative(message);
                }
                if (same(message.getMessageId(), end)) {
                    return found;
                }
            }
        }
    }

    private List<String> answer(List<String> words) throws Exception {
        String topic = words.get(1);
        return switch (words.get(0)) {
            case "send" -> send(topic, words.get(2), words.get(3), words.subList(4, words.size()));
            case "view" -> view(topic, words.subList(2, words.size()));
            case "last" -> last(topic);
            case "table" -> table(topic);
            case "consume" -> consume(topic, words.get(2), words.get(3), Long.parseLong(words.get(4)), words.get(5));
            default -> throw new IllegalArgumentException(words.get(0));
        };
    }

    public static void main(String[] arguments) throws Exception {
        var program = new Views(PulsarClient.builder().serviceUrl(arguments[0]).build(), Path.of(arguments[1]));
        var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            try {
                System.out.println(("ok " + String.join(" ", program.answer(Arrays.asList(line.split(" "))))).trim());
            } catch (Exception failure) {
                System.out.println("error " + failure.toString().replace('\n', ' '));
            }
        }
        System.exit(0); // the client's shut-down takes seconds
    }
}
