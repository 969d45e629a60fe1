package interop;

import static interop.Check.*;

import java.security.KeyPairGenerator;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.BatcherBuilder;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.CryptoKeyReader;
import org.apache.pulsar.client.api.EncryptionKeyInfo;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.MessageIdAdv;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.TableView;
import org.apache.pulsar.client.api.TypedMessageBuilder;

/** What a compaction leaves, as consumers, readers and table views see it. Pairs are "key=value". */
final class Compaction {
    private static final String[] LOG = {"a=1", "b=1", "a=2", "=keyless", "c=1", "d=1", "c=", "e=1", "b=", "a=3"};
    private static final List<String> LEFT = List.of("d=1", "e=1", "a=3");

    private Compaction() {}

    static void list(Map<String, Main.Scenario> scenarios) {
        scenarios.put("compacted: codecs and batches", Compaction::codecs);
        scenarios.put("compacted: last message id", Compaction::lastMessageId);
        scenarios.put("compacted: seek", Compaction::seek);
        scenarios.put("compacted: consumers", Compaction::consumers);
        scenarios.put("compacted: encrypted", Compaction::encrypted);
        scenarios.put("compacted: chunked", Compaction::chunked);
        scenarios.put("compacted: table view", Compaction::tableView);
        scenarios.put("compacted: partitions", Compaction::partitions);
    }

    private static ProducerBuilder<byte[]> producer(Server server, String topic, boolean batching) {
        return server.client.newProducer().topic(topic).enableBatching(batching).batchingMaxMessages(4)
                .batchingMaxPublishDelay(1, TimeUnit.SECONDS);
    }

    private static List<MessageId> sendPairs(Producer<byte[]> producer, String... pairs) throws Exception {
        var sent = new ArrayList<CompletableFuture<MessageId>>();
        for (String pair : pairs) {
            String key = pair.substring(0, pair.indexOf('='));
            String value = pair.substring(key.length() + 1);
            TypedMessageBuilder<byte[]> message = producer.newMessage().value(value.isEmpty() ? null : value.getBytes());
            sent.add((key.isEmpty() ? message : message.key(key)).sendAsync());
        }
        producer.flush();
        List<MessageId> ids = new ArrayList<>();
        for (var each : sent) {
            ids.add(each.get(SECONDS_MAX, TimeUnit.SECONDS));
        }
        return ids;
    }

    private static void compact(Server server, String topic) throws Exception {
        server.admin("PUT", topic, "/compaction", "");
        eventually(() -> {
            String status = server.admin("GET", topic, "/compaction", "");
            that(!status.contains("ERROR"), status);
            return status.contains("SUCCESS");
        }, "compaction");
    }

    private static String pair(Message<byte[]> message) {
        return (message.hasKey() ? message.getKey() : "") + "=" + (message.getData() == null ? "" : text(message));
    }

    private static List<Message<byte[]>> rest(Reader<byte[]> reader) throws Exception {
        List<Message<byte[]>> messages = new ArrayList<>();
        while (reader.hasMessageAvailable()) {
            Message<byte[]> message = reader.readNext(SECONDS_MAX, TimeUnit.SECONDS);
            that(message != null, "hasMessageAvailable promised a message after " + messages.size());
            messages.add(message);
        }
        return messages;
    }

    private static List<String> pairs(List<Message<byte[]>> messages) {
        return messages.stream().map(Compaction::pair).toList();
    }

    private static Reader<byte[]> reader(Server server, String topic) throws Exception {
        return server.client.newReader().topic(topic).startMessageId(MessageId.earliest).readCompacted(true).create();
    }

    private static List<String> view(Server server, String topic) throws Exception {
        try (Reader<byte[]> reader = reader(server, topic)) {
            return pairs(rest(reader));
        }
    }

    private static void codecs(Server server) throws Exception {
        for (CompressionType codec : CompressionType.values()) {
            for (boolean batching : new boolean[] {true, false}) {
                String topic = server.topic(), what = codec + ", batching " + batching;
                try (Producer<byte[]> producer = producer(server, topic, batching).compressionType(codec).create()) {
                    List<MessageId> ids = sendPairs(producer, LOG);
                    compact(server, topic);
                    sendPairs(producer, "a=4", "f=1");
                    try (Reader<byte[]> reader = reader(server, topic)) {
                        List<Message<byte[]>> found = rest(reader);
                        equal(List.of("d=1", "e=1", "a=3", "a=4", "f=1"), pairs(found), what);
                        equal(0, found.get(0).getMessageId().compareTo(ids.get(5)), "id of d=1, " + what);
                        equal(0, found.get(2).getMessageId().compareTo(ids.get(9)), "id of a=3, " + what);
                    }
                    compact(server, topic);
                    equal(List.of("d=1", "e=1", "a=4", "f=1"), view(server, topic), "again, " + what);
                }
            }
        }
    }

    private static void lastMessageId(Server server) throws Exception {
        for (boolean batching : new boolean[] {true, false}) {
            String topic = server.topic();
            try (Producer<byte[]> producer = producer(server, topic, batching).create()) {
                List<MessageId> ids = sendPairs(producer, "a=1", "b=1", "c=1", "c=");
                compact(server, topic);
                try (Consumer<byte[]> consumer = consumer(server, topic, "s", true)) {
                    MessageIdAdv last = (MessageIdAdv) consumer.getLastMessageIds().get(0);
                    equal(0, last.compareTo(ids.get(1)), "last id " + last + " of " + ids + ", batching " + batching);
                }
                try (Consumer<byte[]> plain = consumer(server, topic, "p", false)) {
                    equal(0, plain.getLastMessageIds().get(0).compareTo(ids.get(3)), "of the log, batching " + batching);
                }
                sendPairs(producer, "a=", "b=");
                compact(server, topic);
                try (Reader<byte[]> reader = reader(server, topic)) {
                    that(!reader.hasMessageAvailable(), "every key is removed, batching " + batching);
                    sendPairs(producer, "a=2");
                    equal(List.of("a=2"), pairs(rest(reader)), "what came later, batching " + batching);
                }
            }
        }
    }

    private static void seek(Server server) throws Exception {
        String topic = server.topic();
        try (Producer<byte[]> producer = producer(server, topic, false).create()) {
            List<MessageId> ids = sendPairs(producer, LOG);
            Thread.sleep(20);
            long time = System.currentTimeMillis();
            List<MessageId> late = sendPairs(producer, "g=1", "a=4");
            compact(server, topic);
            List<String> all = List.of("d=1", "e=1", "g=1", "a=4");
            try (Reader<byte[]> reader = reader(server, topic)) {
                equal(all, pairs(rest(reader)), "first pass");
                reader.seek(MessageId.earliest);
                equal(all, pairs(rest(reader)), "from the start");
                reader.seek(ids.get(2));
                equal(all, pairs(rest(reader)), "from what is compacted away");
                reader.seek(ids.get(5));
                equal(all.subList(1, 4), pairs(rest(reader)), "after an id");
                reader.seek(late.get(0));
                equal(all.subList(3, 4), pairs(rest(reader)), "after a later id");
                reader.seek(time);
                // The client comes back with "earliest" as its start, which Pulsar then goes by.
                List<String> found = pairs(rest(reader));
                that(found.equals(all.subList(2, 4)) || found.equals(all), "from a time: " + found);
                reader.seek(0);
                equal(all, pairs(rest(reader)), "from 1970");
                reader.seek(MessageId.latest);
                that(!reader.hasMessageAvailable(), "nothing after the end");
            }
            try (Consumer<byte[]> consumer = consumer(server, topic, "s", true)) {
                equal(all, pairs(take(consumer, 4)), "a consumer's first pass");
                consumer.seek(time);
                equal(all.subList(2, 4), pairs(take(consumer, 2)), "a consumer from a time");
                consumer.seek(ids.get(2));
                equal(all, pairs(take(consumer, 4)), "a consumer from what is compacted away");
            }
            try (Reader<byte[]> from = server.client.newReader().topic(topic).startMessageId(ids.get(7))
                    .startMessageIdInclusive().readCompacted(true).create()) {
                equal(all.subList(1, 4), pairs(rest(from)), "from an id");
            }
        }
    }

    private static Consumer<byte[]> consumer(Server server, String topic, String name, boolean compacted) throws Exception {
        return server.client.newConsumer().topic(topic).subscriptionName(name).readCompacted(compacted)
                .subscriptionType(SubscriptionType.Failover)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
    }

    private static void consumers(Server server) throws Exception {
        String topic = server.topic();
        try (Producer<byte[]> producer = producer(server, topic, true).create()) {
            sendPairs(producer, LOG);
            compact(server, topic);
            try (Consumer<byte[]> consumer = consumer(server, topic, "s", true)) {
                List<Message<byte[]>> found = take(consumer, 3);
                equal(LEFT, pairs(found), "all");
                nothing(consumer);
                consumer.acknowledge(found.get(0));
                consumer.redeliverUnacknowledgedMessages();
                equal(LEFT.subList(1, 3), pairs(take(consumer, 2)), "redelivered");
                consumer.acknowledgeCumulative(found.get(2));
            }
            sendPairs(producer, "z=1");
            try (Consumer<byte[]> consumer = consumer(server, topic, "s", true)) {
                equal("z=1", pair(next(consumer)), "after what was acknowledged");
            }
            fails(PulsarClientException.InvalidConfigurationException.class, () -> server.client.newConsumer().topic(topic)
                    .subscriptionName("shared").subscriptionType(SubscriptionType.Shared).readCompacted(true).subscribe(),
                    "a shared subscription");
        }
    }

    /** A pair of RSA keys under any name. */
    private static CryptoKeyReader keys() throws Exception {
        KeyPairGenerator generator = KeyPairGenerator.getInstance("RSA");
        generator.initialize(2048);
        var pair = generator.generateKeyPair();
        Base64.Encoder encoder = Base64.getMimeEncoder();
        String open = "-----BEGIN PUBLIC KEY-----\n" + encoder.encodeToString(pair.getPublic().getEncoded())
                + "\n-----END PUBLIC KEY-----\n";
        String closed = "-----BEGIN PRIVATE KEY-----\n" + encoder.encodeToString(pair.getPrivate().getEncoded())
                + "\n-----END PRIVATE KEY-----\n";
        return new CryptoKeyReader() {
            @Override
            public EncryptionKeyInfo getPublicKey(String name, Map<String, String> metadata) {
                return new EncryptionKeyInfo(open.getBytes(), Map.of());
            }

            @Override
            public EncryptionKeyInfo getPrivateKey(String name, Map<String, String> metadata) {
                return new EncryptionKeyInfo(closed.getBytes(), Map.of());
            }
        };
    }

    /** A batch is one message, and goes by the key of its entry, which is that of the first in it. */
    private static void encrypted(Server server) throws Exception {
        CryptoKeyReader keys = keys();
        var batchers = new TreeMap<String, BatcherBuilder>(Map.of("any", BatcherBuilder.DEFAULT, "by key", BatcherBuilder.KEY_BASED));
        var left = Map.of("none", LEFT, "any", List.of(LOG), "by key", List.of("d=1", "c=1", "c=", "e=1", "a=3"));
        for (String kind : left.keySet()) {
            String topic = server.topic();
            ProducerBuilder<byte[]> builder = producer(server, topic, !kind.equals("none"));
            if (batchers.containsKey(kind)) {
                builder.batcherBuilder(batchers.get(kind));
            }
            try (Producer<byte[]> producer = builder.addEncryptionKey("k").cryptoKeyReader(keys).create()) {
                sendPairs(producer, LOG);
                sendPairs(producer, LOG);
                compact(server, topic);
                try (Reader<byte[]> reader = server.client.newReader().topic(topic).startMessageId(MessageId.earliest)
                        .readCompacted(true).cryptoKeyReader(keys).create()) {
                    equal(left.get(kind), pairs(rest(reader)), "batches: " + kind);
                }
            }
        }
    }

    /** Pulsar keeps the last chunk only, which is no message (docs/formats/compacted-ledger.md). */
    private static void chunked(Server server) throws Exception {
        String topic = server.topic();
        try (Producer<byte[]> producer = server.client.newProducer().topic(topic).enableBatching(false)
                .enableChunking(true).chunkMaxMessageSize(1000).create()) {
            String large = "x".repeat(2500);
            sendPairs(producer, "a=1" + large, "b=1", "a=2" + large, "c=1" + large, "c=1");
            compact(server, topic);
            List<String> found = view(server, topic);
            that(found.equals(List.of("b=1", "a=2" + large, "c=1")) || found.equals(List.of("b=1", "c=1")),
                    "the view: " + found);
            sendPairs(producer, "d=" + large, "a=3");
            compact(server, topic);
            found = view(server, topic);
            that(found.equals(List.of("b=1", "c=1", "d=" + large, "a=3")) || found.equals(List.of("b=1", "c=1", "a=3")),
                    "the next view: " + found);
        }
    }

    private static void tableView(Server server) throws Exception {
        String topic = server.partitioned(2);
        try (Producer<byte[]> producer = producer(server, topic, true).create()) {
            var expected = new TreeMap<String, String>();
            for (int n = 0; n < 30; n++) {
                sendPairs(producer, "k" + n % 10 + "=" + n);
                expected.put("k" + n % 10, Integer.toString(n));
            }
            sendPairs(producer, "k3=");
            expected.remove("k3");
            for (int partition = 0; partition < 2; partition++) {
                compact(server, topic + "-partition-" + partition);
            }
            try (TableView<byte[]> view = server.client.newTableView().topic(topic).create()) {
                var actual = new TreeMap<String, String>();
                view.forEach((key, value) -> actual.put(key, new String(value)));
                equal(expected, actual, "latest values");
                sendPairs(producer, "k0=new", "k1=");
                eventually(() -> new String(view.get("k0")).equals("new") && view.get("k1") == null, "updates");
            }
        }
    }

    private static void partitions(Server server) throws Exception {
        String topic = server.partitioned(3);
        try (Producer<byte[]> producer = producer(server, topic, true).create()) {
            for (int n = 0; n < 40; n++) {
                sendPairs(producer, "k" + n % 9 + "=" + n);
            }
            server.admin("PUT", topic, "/compaction", "");
            for (int partition = 0; partition < 3; partition++) {
                String part = topic + "-partition-" + partition;
                eventually(() -> server.admin("GET", part, "/compaction", "").contains("SUCCESS"), part);
            }
            List<String> found = new ArrayList<>(view(server, topic));
            found.sort(null);
            List<String> expected = new ArrayList<>();
            for (int n = 31; n < 40; n++) {
                expected.add("k" + n % 9 + "=" + n);
            }
            expected.sort(null);
            equal(expected, found, "of all partitions");
        }
    }
}
