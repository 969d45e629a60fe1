package interop;

import static interop.Check.*;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.MessageIdAdv;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.TopicMessageId;
import org.apache.pulsar.client.api.transaction.Transaction;

/**
 * Random histories of transactions: each answer, and what is left, is as Apache Pulsar 4.2.4 answered (histories.txt).
 * HISTORIES_RECORD names a file to which they are appended instead; HISTORIES_FIRST and HISTORIES are other seeds.
 */
final class Histories {
    private static final int STEPS = 70;
    private static final List<SubscriptionType> ONE_BY_ONE = List.of(SubscriptionType.Shared, SubscriptionType.Key_Shared);
    private static final List<SubscriptionType> CUMULATIVE = List.of(SubscriptionType.Exclusive, SubscriptionType.Failover);

    private static final class Open {
        final String name;
        final Transaction transaction;
        final List<Integer> sent = new ArrayList<>();
        boolean failed;

        Open(String name, Transaction transaction) {
            this.name = name;
            this.transaction = transaction;
        }
    }

    private final Transactions.World world;
    private final Random random;
    private final boolean cumulative;
    private final boolean partitioned;
    private final String topic;
    private final Producer<byte[]> plain;
    private final Producer<byte[]> batching;
    private final Producer<byte[]> chunking;
    private final ConsumerBuilder<byte[]> builder;
    private Consumer<byte[]> consumer;
    private final List<MessageId> ids = new ArrayList<>();
    private final Map<String, String> names = new HashMap<>();
    /** What may be acknowledged. Messages of aborted transactions are so by the broker, when it comes upon them. */
    private final List<Integer> alive = new ArrayList<>();
    private final List<Open> open = new ArrayList<>();
    private int begun;
    private final StringBuilder told = new StringBuilder();

    static void list(Map<String, Main.Scenario> scenarios) {
        int first = number("HISTORIES_FIRST", 0);
        for (int seed = first; seed < first + number("HISTORIES", 5); seed++) {
            int it = seed;
            scenarios.put("transactions: history " + seed, Transactions.in(world -> new Histories(world, it).compare(it)));
        }
    }

    private static int number(String name, int otherwise) {
        return System.getenv(name) == null ? otherwise : Integer.parseInt(System.getenv(name));
    }

    private Histories(Transactions.World world, int seed) throws Exception {
        this.world = world;
        random = new Random(seed);
        cumulative = random.nextInt(3) == 0;
        SubscriptionType type = one(cumulative ? CUMULATIVE : ONE_BY_ONE);
        partitioned = random.nextInt(4) == 0;
        topic = partitioned ? world.server().partitioned(2) : world.topic();
        subscribed("hold", SubscriptionType.Exclusive).subscribe().close(); // else the log would be trimmed now and then
        plain = world.client().newProducer().topic(topic).enableBatching(false).sendTimeout(0, TimeUnit.SECONDS).create();
        batching = world.client().newProducer().topic(topic).batchingMaxMessages(1000)
                .batchingMaxPublishDelay(1, TimeUnit.SECONDS).sendTimeout(0, TimeUnit.SECONDS).create();
        chunking = world.client().newProducer().topic(topic).enableBatching(false).enableChunking(true)
                .chunkMaxMessageSize(100).sendTimeout(0, TimeUnit.SECONDS).create();
        builder = subscribed("s", type);
        consumer = builder.subscribe();
        told.append(type).append(partitioned ? " of two partitions\n" : "\n");
    }

    private ConsumerBuilder<byte[]> subscribed(String name, SubscriptionType type) {
        return world.client().newConsumer().topic(topic).subscriptionName(name).subscriptionType(type)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).isAckReceiptEnabled(true)
                .acknowledgmentGroupTime(0, TimeUnit.SECONDS).enableBatchIndexAcknowledgment(true);
    }

    private <T> T one(List<T> of) {
        return of.get(random.nextInt(of.size()));
    }

    private void compare(int seed) throws Exception {
        try (plain; batching; chunking) {
            for (int step = 0; step < STEPS; step++) {
                told.append(step(random.nextInt(100))).append('\n');
            }
            while (!open.isEmpty()) {
                told.append(end(open.remove(0), random.nextBoolean())).append('\n');
            }
            consumer.close();
            whatIsLeft();
            log();
        } finally {
            consumer.close();
        }
        String mark = "== " + seed + "\n";
        if (System.getenv("HISTORIES_RECORD") != null) {
            Path file = Path.of(System.getenv("HISTORIES_RECORD"));
            Files.writeString(file, (Files.exists(file) ? Files.readString(file) : "") + mark + told);
            return;
        }
        String recorded = recorded();
        int from = recorded.indexOf(mark);
        that(from >= 0, "nothing is recorded of seed " + seed);
        String[] expected = recorded.substring(from + mark.length()).split("(?m)^== ")[0].split("\n");
        String[] actual = told.toString().split("\n");
        for (int line = 0; line < expected.length; line++) {
            equal(expected[line], line < actual.length ? actual[line] : null, "seed " + seed + ", step " + line);
        }
    }

    private static String recorded() throws IOException {
        try (var stream = Histories.class.getResourceAsStream("/histories.txt")) {
            return new String(stream.readAllBytes(), StandardCharsets.UTF_8);
        }
    }

    private String step(int what) throws Exception {
        Open in = open.isEmpty() || random.nextInt(4) == 0 ? null : one(open);
        if (what < 2) {
            return timedOut();
        } else if (what < 10) {
            open.add(new Open("x" + begun++, world.begin()));
            return "begin " + open.get(open.size() - 1).name;
        } else if (what < 25) {
            return "send " + send(plain, 1, in);
        } else if (what < 28) {
            return "chunks " + send(chunking, 1, in);
        } else if (what < 31) {
            return "delayed " + delayed(in);
        } else if (what < 40) {
            return "batch " + send(batching, 2 + random.nextInt(4), in);
        } else if (what < 66 && !alive.isEmpty()) {
            return acknowledge(in, what >= 60);
        } else if (what < 86 && in != null) {
            open.remove(in);
            return end(in, random.nextInt(3) > 0);
        } else if (what > 85 && what < 88 && !ids.isEmpty() && !partitioned) { // of several topics a client takes no id
            int at = random.nextInt(ids.size());
            consumer.seek(ids.get(at));
            eventually(consumer::isConnected, "a connection behind the seek");
            return "seek m" + at;
        } else if (what < 90) {
            consumer.unsubscribe();
            consumer = builder.subscribe();
            return "another subscription";
        } else if (what < 92) {
            consumer.close();
            consumer = builder.subscribe();
            return "another consumer";
        } else if (what < 95 && !cumulative) { // Pulsar then forgets some that are acknowledged by others, too
            unload();
            return "unload";
        }
        return "last " + consumer.getLastMessageIds().stream().map(id -> names.getOrDefault(key(id), "none")).sorted().toList();
    }

    private static String key(MessageId id) {
        MessageIdAdv it = (MessageIdAdv) id;
        return it.getLedgerId() + ":" + it.getEntryId() + ":" + it.getBatchIndex();
    }

    private String send(Producer<byte[]> producer, int count, Open in) throws Exception {
        List<CompletableFuture<MessageId>> sent = new ArrayList<>();
        for (int n = 0; n < count; n++) {
            var message = in == null ? producer.newMessage() : producer.newMessage(in.transaction);
            String padding = producer == chunking ? " ".repeat(350) : "";
            sent.add(message.key("k" + random.nextInt(3)).value(("m" + (ids.size() + n) + padding).getBytes()).sendAsync());
        }
        producer.flush();
        int first = ids.size();
        for (var each : sent) {
            sent(each.get(SECONDS_MAX, TimeUnit.SECONDS), in, producer != chunking);
        }
        return "m" + first + " to m" + (ids.size() - 1) + (in == null ? "" : " in " + in.name);
    }

    /** Which chunks a client acknowledges depends on what it has got. */
    private void sent(MessageId id, Open in, boolean acknowledged) {
        names.put(key(id), "m" + ids.size());
        if (acknowledged) {
            alive.add(ids.size());
        }
        if (in != null) {
            in.sent.add(ids.size());
        }
        String part = topic + "-partition-" + ((MessageIdAdv) id).getPartitionIndex();
        ids.add(partitioned ? TopicMessageId.create(part, id) : id);
    }

    /** One that sends and acknowledges, and is aborted by its coordinator. */
    private String timedOut() throws Exception {
        Transaction late = world.begin(3_000);
        sent(plain.newMessage(late).key("k0").value(("m" + ids.size()).getBytes()).send(), null, false);
        String said = "time out after m" + (ids.size() - 1);
        if (!cumulative && !alive.isEmpty()) {
            said += ", " + acknowledge(new Open("it", late), false);
        }
        eventually(() -> late.getState() == Transaction.State.TIME_OUT, "the client's time-out");
        String path = "/admin/v3/transactions/transactionMetadata/" + late.getTxnID().getMostSigBits() + "/"
                + late.getTxnID().getLeastSigBits();
        eventually(() -> {
            try {
                world.server().adminPath("GET", path, "");
                return false;
            } catch (AssertionError missing) {
                return true;
            }
        }, "the coordinator's");
        try {
            late.commit().get(SECONDS_MAX, TimeUnit.SECONDS);
            return said + ", committed";
        } catch (ExecutionException refused) {
            return said + ", " + refused.getCause().getClass().getSimpleName();
        }
    }

    private String delayed(Open in) throws Exception {
        var message = in == null ? plain.newMessage() : plain.newMessage(in.transaction);
        MessageId id = message.key("k0").deliverAfter(200 + random.nextInt(300), TimeUnit.MILLISECONDS)
                .value(("m" + ids.size()).getBytes()).send();
        sent(id, in, true);
        return "m" + (ids.size() - 1) + (in == null ? "" : " in " + in.name);
    }

    /** In a transaction that has failed the client would not even ask. */
    private String acknowledge(Open in, boolean several) throws Exception {
        boolean upto = cumulative && random.nextBoolean();
        if (cumulative && !upto) {
            in = null; // in Pulsar such ones are lost beside a cumulative one of another transaction
        }
        List<Integer> which = new ArrayList<>();
        for (int n = 0; n < (several && !cumulative && in != null ? 3 : 1); n++) {
            which.add(one(alive));
        }
        String said = (upto ? "up to " : "") + which + (in == null ? "" : " in " + in.name);
        if (in != null && in.failed) {
            return said + " skipped";
        }
        List<MessageId> chosen = which.stream().map(ids::get).toList();
        try {
            CompletableFuture<Void> asked;
            if (upto) {
                asked = in == null ? consumer.acknowledgeCumulativeAsync(chosen.get(0))
                        : consumer.acknowledgeCumulativeAsync(chosen.get(0), in.transaction);
            } else {
                asked = in == null ? consumer.acknowledgeAsync(chosen) : consumer.acknowledgeAsync(chosen, in.transaction);
            }
            asked.get(SECONDS_MAX, TimeUnit.SECONDS);
            return said + " acknowledged";
        } catch (ExecutionException refused) {
            if (in != null) {
                in.failed = true;
            }
            return said + " " + refused.getCause().getClass().getSimpleName();
        }
    }

    private String end(Open in, boolean commits) throws Exception {
        String said = (commits ? "commit " : "abort ") + in.name;
        try {
            (commits ? in.transaction.commit() : in.transaction.abort()).get(SECONDS_MAX, TimeUnit.SECONDS);
            if (!commits) {
                alive.removeAll(in.sent);
            }
            return said;
        } catch (ExecutionException refused) {
            eventually(() -> in.transaction.getState() == Transaction.State.ABORTED, "the client aborts " + in.name);
            alive.removeAll(in.sent);
            return said + " " + refused.getCause().getClass().getSimpleName();
        }
    }

    private List<String> parts() {
        return partitioned ? List.of(topic + "-partition-0", topic + "-partition-1") : List.of(topic);
    }

    private void unload() throws Exception {
        for (String part : parts()) {
            world.server().admin("PUT", part, "/unload", "");
        }
        var before = List.of(plain, batching, chunking);
        eventually(() -> {
            for (String part : parts()) {
                world.server().admin("GET", part, "/stats", "");
            }
            return consumer.isConnected() && before.stream().allMatch(Producer::isConnected);
        }, "connections");
    }

    private static int number(Message<byte[]> message) {
        return Integer.parseInt(text(message).substring(1).trim());
    }

    /** A third of it is acknowledged by transactions that are aborted, and one by one goes to the dead letters. */
    private void whatIsLeft() throws Exception {
        var left = new TreeSet<Integer>();
        var aborted = new TreeSet<Integer>();
        ConsumerBuilder<byte[]> again = builder;
        if (!cumulative) {
            again = builder.clone().negativeAckRedeliveryDelay(100, TimeUnit.MILLISECONDS).deadLetterPolicy(
                    DeadLetterPolicy.builder().maxRedeliverCount(2).deadLetterTopic(world.topic() + "-dead").build());
        }
        try (Consumer<byte[]> last = again.subscribe()) {
            Message<byte[]> message;
            while ((message = last.receive(2, TimeUnit.SECONDS)) != null) {
                int number = number(message);
                left.add(number);
                if (cumulative) {
                    continue;
                } else if (number % 3 == 0) {
                    last.negativeAcknowledge(message);
                } else if (number % 3 == 1 && aborted.add(number)) {
                    Transaction transaction = world.begin();
                    Transactions.acknowledge(last, message, transaction);
                    Transactions.abort(transaction);
                } else {
                    last.acknowledge(message);
                }
            }
        }
        told.append("left ").append(left).append('\n');
        if (!cumulative) { // at least once; with others of their batches, as redeliveries are counted by entry
            told.append("dead ").append(read(world.topic() + "-dead").stream().filter(n -> n % 3 == 0).distinct().sorted()
                    .toList()).append('\n');
        }
    }

    private List<Integer> read(String from) throws Exception {
        try (Reader<byte[]> reader = world.client().newReader().topic(from).startMessageId(MessageId.earliest).create()) {
            List<Integer> found = new ArrayList<>();
            while (reader.hasMessageAvailable()) {
                found.add(number(reader.readNext(SECONDS_MAX, TimeUnit.SECONDS)));
            }
            return found;
        }
    }

    private void log() throws Exception {
        for (String part : parts()) {
            told.append("log ").append(read(part)).append('\n');
        }
    }
}
