package interop;

import static interop.Check.*;

import java.security.KeyPairGenerator;
import java.util.Base64;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.BatcherBuilder;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerCryptoFailureAction;
import org.apache.pulsar.client.api.CryptoKeyReader;
import org.apache.pulsar.client.api.EncryptionKeyInfo;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerAccessMode;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.SubscriptionType;

/** What producers may ask for: batches, compression, chunks, encryption, access modes. */
final class Producing {
    private Producing() {}

    static void list(Map<String, Main.Scenario> scenarios) {
        scenarios.put("batches", Producing::batches);
        scenarios.put("key-based batches", Producing::keyBasedBatches);
        scenarios.put("metadata of messages", Producing::metadata);
        scenarios.put("compression", Producing::compression);
        scenarios.put("chunking", Producing::chunking);
        scenarios.put("too large", Producing::tooLarge);
        scenarios.put("encryption", Producing::encryption);
        scenarios.put("exclusive access", Producing::exclusive);
        scenarios.put("wait for exclusive access", Producing::waitForExclusive);
        scenarios.put("exclusive access with fencing", Producing::fencing);
        scenarios.put("names and sequence ids", Producing::sequenceIds);
        scenarios.put("delayed messages", Producing::delayed);
        scenarios.put("non-persistent topic", Producing::nonPersistent);
    }

    private static void batches(Server server) throws Exception {
        String topic = server.topic();
        try (Consumer<byte[]> consumer = server.client.newConsumer().topic(topic).subscriptionName("s").subscribe();
                Producer<byte[]> producer = server.client.newProducer().topic(topic).batchingMaxMessages(100)
                        .batchingMaxPublishDelay(20, TimeUnit.MILLISECONDS).blockIfQueueFull(true).create()) {
            List<MessageId> ids = send(producer, 0, 1000);
            equal(1000, new HashSet<>(ids).size(), "distinct message ids");
            List<Message<byte[]>> messages = take(consumer, 1000);
            equal(numbers(0, 1000), texts(messages), "order");
            equal(ids, messages.stream().map(Message::getMessageId).toList(), "ids of receipts and messages");
        }
    }

    private static void keyBasedBatches(Server server) throws Exception {
        String topic = server.topic();
        try (Consumer<byte[]> one = keyShared(server, topic);
                Consumer<byte[]> two = keyShared(server, topic);
                Producer<byte[]> producer = server.client.newProducer().topic(topic)
                        .batcherBuilder(BatcherBuilder.KEY_BASED).create()) {
            CompletableFuture<?>[] sent = new CompletableFuture<?>[300];
            for (int n = 0; n < 300; n++) {
                sent[n] = producer.newMessage().key("k" + n % 30).value(Integer.toString(n).getBytes()).sendAsync();
            }
            producer.flush();
            CompletableFuture.allOf(sent).get(SECONDS_MAX, TimeUnit.SECONDS);
            Set<String> ofOne = new HashSet<>();
            Set<String> ofTwo = new HashSet<>();
            int left = 300;
            long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(SECONDS_MAX);
            while (left > 0) {
                that(System.nanoTime() < deadline, left + " messages are missing");
                left -= drain(one, ofOne) + drain(two, ofTwo);
            }
            that(!ofOne.isEmpty() && !ofTwo.isEmpty(), "30 keys went to one consumer");
            ofOne.retainAll(ofTwo);
            equal(Set.of(), ofOne, "keys of both consumers");
        }
    }

    private static Consumer<byte[]> keyShared(Server server, String topic) throws Exception {
        return server.client.newConsumer().topic(topic).subscriptionName("s")
                .subscriptionType(SubscriptionType.Key_Shared).subscribe();
    }

    private static int drain(Consumer<byte[]> consumer, Set<String> keys) throws Exception {
        Message<byte[]> message = consumer.receive(10, TimeUnit.MILLISECONDS);
        if (message == null) {
            return 0;
        }
        keys.add(message.getKey());
        consumer.acknowledge(message);
        return 1;
    }

    private static void metadata(Server server) throws Exception {
        String topic = server.topic();
        try (Consumer<byte[]> consumer = server.client.newConsumer().topic(topic).subscriptionName("s").subscribe();
                Producer<byte[]> producer = server.client.newProducer().topic(topic).create()) {
            producer.newMessage().key("k").orderingKey(new byte[] {1, 2}).eventTime(12345).property("a", "ü")
                    .value("v".getBytes()).send();
            producer.newMessage().keyBytes(new byte[] {0, -1}).value(null).send();
            Message<byte[]> message = next(consumer);
            equal("k", message.getKey(), "key");
            equal(2, message.getOrderingKey().length, "ordering key");
            equal(12345L, message.getEventTime(), "event time");
            equal(Map.of("a", "ü"), message.getProperties(), "properties");
            equal(producer.getProducerName(), message.getProducerName(), "producer");
            Message<byte[]> empty = next(consumer);
            that(empty.hasBase64EncodedKey() && empty.getKeyBytes().length == 2, "binary key");
            equal(null, empty.getValue(), "null value");
        }
    }

    private static void compression(Server server) throws Exception {
        String topic = server.topic();
        try (Consumer<byte[]> consumer = server.client.newConsumer().topic(topic).subscriptionName("s").subscribe()) {
            for (CompressionType type : CompressionType.values()) {
                for (boolean batching : new boolean[] {true, false}) {
                    try (Producer<byte[]> producer = server.client.newProducer().topic(topic).compressionType(type)
                            .enableBatching(batching).create()) {
                        producer.send("compressed ".repeat(100).getBytes());
                    }
                    equal("compressed ".repeat(100), text(next(consumer)), type + " batching " + batching);
                }
            }
        }
    }

    private static void chunking(Server server) throws Exception {
        String topic = server.topic();
        try (Consumer<byte[]> consumer = server.client.newConsumer().topic(topic).subscriptionName("s")
                        .subscriptionType(SubscriptionType.Shared).isAckReceiptEnabled(true).subscribe();
                Producer<byte[]> chunks = server.client.newProducer().topic(topic).enableBatching(false)
                        .enableChunking(true).chunkMaxMessageSize(50_000).create();
                Producer<byte[]> other = server.client.newProducer().topic(topic).create()) {
            byte[] large = new byte[12_000_000];
            for (int n = 0; n < large.length; n++) {
                large[n] = (byte) (n * 31);
            }
            CompletableFuture<MessageId> first = chunks.sendAsync(large);
            other.send("small".getBytes());
            MessageId id = first.get(SECONDS_MAX, TimeUnit.SECONDS);
            for (Message<byte[]> message : take(consumer, 2)) {
                if (message.getData().length > 5) {
                    that(java.util.Arrays.equals(large, message.getData()), "chunked payload");
                    equal(id, message.getMessageId(), "chunked id");
                } else {
                    equal("small", text(message), "other payload");
                }
                consumer.acknowledge(message);
            }
            eventually(() -> server.admin("GET", topic, "/stats", "").contains("\"msgBacklog\":0"), "all chunks acknowledged");
            consumer.seek(id);
            consumer.close();
        }
    }

    private static void tooLarge(Server server) throws Exception {
        try (Producer<byte[]> producer = server.client.newProducer().topic(server.topic()).enableBatching(false).create()) {
            fails(PulsarClientException.InvalidMessageException.class,
                    () -> producer.send(new byte[6 * 1024 * 1024]), "6 MiB");
            producer.send("still works".getBytes());
        }
    }

    /** RSA keys made for this run, as PEM texts. */
    private static final class Keys implements CryptoKeyReader {
        private final byte[] publicKey;
        private final byte[] privateKey;

        Keys() throws Exception {
            KeyPairGenerator generator = KeyPairGenerator.getInstance("RSA");
            generator.initialize(2048);
            var pair = generator.generateKeyPair();
            publicKey = pem("PUBLIC KEY", pair.getPublic().getEncoded());
            privateKey = pem("PRIVATE KEY", pair.getPrivate().getEncoded());
        }

        private static byte[] pem(String label, byte[] der) {
            String text = Base64.getMimeEncoder(64, "\n".getBytes()).encodeToString(der);
            return ("-----BEGIN " + label + "-----\n" + text + "\n-----END " + label + "-----\n").getBytes();
        }

        @Override
        public EncryptionKeyInfo getPublicKey(String name, Map<String, String> metadata) {
            return new EncryptionKeyInfo(publicKey, Map.of());
        }

        @Override
        public EncryptionKeyInfo getPrivateKey(String name, Map<String, String> metadata) {
            return new EncryptionKeyInfo(privateKey, Map.of());
        }
    }

    private static void encryption(Server server) throws Exception {
        String topic = server.topic();
        Keys keys = new Keys();
        try (Consumer<byte[]> consumer = server.client.newConsumer().topic(topic).subscriptionName("s")
                        .cryptoKeyReader(keys).subscribe();
                Consumer<byte[]> keyless = server.client.newConsumer().topic(topic).subscriptionName("keyless")
                        .cryptoFailureAction(ConsumerCryptoFailureAction.CONSUME).subscribe()) {
            for (boolean batching : new boolean[] {true, false}) {
                try (Producer<byte[]> producer = server.client.newProducer().topic(topic).cryptoKeyReader(keys)
                        .addEncryptionKey("mine").enableBatching(batching).compressionType(CompressionType.LZ4).create()) {
                    send(producer, 0, 10);
                }
                equal(numbers(0, 10), texts(take(consumer, 10)), "decrypted, batching " + batching);
            }
            Message<byte[]> sealed = next(keyless);
            that(sealed.getEncryptionCtx().isPresent(), "encryption context");
            that(sealed.getEncryptionCtx().get().getKeys().containsKey("mine"), "key name");
        }
    }

    private static void exclusive(Server server) throws Exception {
        String topic = server.topic();
        var builder = server.client.newProducer().topic(topic).accessMode(ProducerAccessMode.Exclusive);
        Producer<byte[]> first = builder.create();
        fails(PulsarClientException.ProducerFencedException.class, builder::create, "second exclusive producer");
        fails(PulsarClientException.ProducerBusyException.class,
                () -> server.client.newProducer().topic(topic).create(), "shared producer beside an exclusive one");
        first.close();
        builder.create().close();
    }

    private static void waitForExclusive(Server server) throws Exception {
        String topic = server.topic();
        Producer<byte[]> first = server.client.newProducer().topic(topic).accessMode(ProducerAccessMode.Exclusive).create();
        CompletableFuture<Producer<byte[]>> waiting = server.client.newProducer().topic(topic)
                .accessMode(ProducerAccessMode.WaitForExclusive).createAsync();
        Thread.sleep(300);
        that(!waiting.isDone(), "waits while another one is there");
        first.close();
        try (Producer<byte[]> second = waiting.get(SECONDS_MAX, TimeUnit.SECONDS)) {
            second.send("mine".getBytes());
        }
    }

    private static void fencing(Server server) throws Exception {
        String topic = server.topic();
        Producer<byte[]> first = server.client.newProducer().topic(topic).accessMode(ProducerAccessMode.Exclusive).create();
        first.send("before".getBytes());
        try (Producer<byte[]> second = server.client.newProducer().topic(topic)
                .accessMode(ProducerAccessMode.ExclusiveWithFencing).create()) {
            second.send("after".getBytes());
            fails(PulsarClientException.class, () -> first.send("late".getBytes()), "send of a fenced producer");
            eventually(() -> !first.isConnected(), "the fenced producer ends");
            second.send("still mine".getBytes());
        }
    }

    private static void sequenceIds(Server server) throws Exception {
        String topic = server.topic();
        try (Producer<byte[]> producer = server.client.newProducer().topic(topic).producerName("named")
                .initialSequenceId(41).create()) {
            equal(41L, producer.getLastSequenceId(), "initial sequence id");
            producer.send("a".getBytes());
            equal(42L, producer.getLastSequenceId(), "next sequence id");
            producer.newMessage().sequenceId(100).value("b".getBytes()).send();
            equal(100L, producer.getLastSequenceId(), "own sequence id");
            fails(PulsarClientException.ProducerBusyException.class,
                    () -> server.client.newProducer().topic(topic).producerName("named").create(), "name in use");
        }
    }

    private static void delayed(Server server) throws Exception {
        String topic = server.topic();
        try (Consumer<byte[]> shared = server.client.newConsumer().topic(topic).subscriptionName("shared")
                        .subscriptionType(SubscriptionType.Shared).subscribe();
                Consumer<byte[]> exclusive = server.client.newConsumer().topic(topic).subscriptionName("exclusive").subscribe();
                Producer<byte[]> producer = server.client.newProducer().topic(topic).create()) {
            long start = System.currentTimeMillis();
            producer.newMessage().deliverAfter(3, TimeUnit.SECONDS).value("late".getBytes()).send();
            producer.newMessage().deliverAt(start + 2000).value("later".getBytes()).send();
            producer.send("now".getBytes());
            equal(List.of("late", "later", "now"), texts(take(exclusive, 3)), "exclusive: no delay");
            equal("now", text(next(shared)), "shared: undelayed first");
            equal(List.of("later", "late"), texts(take(shared, 2)), "shared: by time");
            long took = System.currentTimeMillis() - start;
            // Pulsar may deliver up to one tick, a second, early; Magnetar does not.
            that(took >= 2000 && took < 6000, "delay of " + took + " ms");
        }
    }

    private static void nonPersistent(Server server) throws Exception {
        String topic = server.topic().replace("persistent://", "non-persistent://");
        try (Consumer<byte[]> consumer = server.client.newConsumer().topic(topic).subscriptionName("s").subscribe();
                Producer<byte[]> producer = server.client.newProducer().topic(topic).create()) {
            send(producer, 0, 50);
            equal(numbers(0, 50), texts(take(consumer, 50)), "messages");
        }
    }
}
