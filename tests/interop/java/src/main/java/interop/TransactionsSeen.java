package interop;

import static interop.Check.*;
import static interop.Transactions.*;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.MessageIdAdv;
import org.apache.pulsar.client.api.MessageRoutingMode;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.transaction.Transaction;

/** What consumers and readers see before, beside and after transactions. */
final class TransactionsSeen {
    private TransactionsSeen() {}

    static void list(Map<String, Main.Scenario> scenarios) {
        scenarios.put("transactions: ends in any order", in(TransactionsSeen::endsInAnyOrder));
        scenarios.put("transactions: last message ids", in(TransactionsSeen::lastMessageIds));
        scenarios.put("transactions: readers that start in one", in(TransactionsSeen::startsInside));
        scenarios.put("transactions: new subscriptions", in(TransactionsSeen::newSubscriptions));
        scenarios.put("transactions: seek by time", in(TransactionsSeen::seekByTime));
        scenarios.put("transactions: parts of a batch outlive an unload", in(TransactionsSeen::partsAfterUnload));
        scenarios.put("transactions: a message that is named twice", in(TransactionsSeen::namedTwice));
        scenarios.put("transactions: dead letters", in(TransactionsSeen::deadLetters));
        scenarios.put("transactions: keys stay with their consumer", in(TransactionsSeen::keys));
        scenarios.put("transactions: more partitions", TransactionsSeen::morePartitions);
        scenarios.put("transactions: sequence ids outlive an unload", TransactionsSeen::sequenceIds);
        scenarios.put("transactions: a batch is compacted", in(TransactionsSeen::compactedBatch));
    }

    private static void sees(Consumer<byte[]> consumer, String... wanted) throws Exception {
        equal(List.of(wanted), texts(take(consumer, wanted.length)), "delivered");
        nothing(consumer);
    }

    private static void seesSorted(Consumer<byte[]> consumer, String... wanted) throws Exception {
        equal(List.of(wanted), texts(take(consumer, wanted.length)).stream().sorted().toList(), "delivered");
        nothing(consumer);
    }

    private static void endsInAnyOrder(World world) throws Exception {
        try (Consumer<byte[]> consumer = world.consumer(SubscriptionType.Exclusive)) {
            List<Transaction> all = new ArrayList<>();
            for (int n = 0; n < 6; n++) {
                all.add(world.begin());
                world.send(all.get(n), "x" + n);
                world.send("p" + n);
            }
            abort(all.get(5));
            abort(all.get(3));
            abort(all.get(1));
            nothing(consumer);
            commit(all.get(0));
            sees(consumer, "x0", "p0", "p1");
            commit(all.get(2));
            sees(consumer, "x2", "p2", "p3");
            commit(all.get(4));
            sees(consumer, "x4", "p4", "p5");
        }
    }

    private static void lastMessageIds(World world) throws Exception {
        try (Consumer<byte[]> consumer = world.consumer(SubscriptionType.Exclusive)) {
            Transaction x = world.begin();
            world.send(x, "x");
            MessageId plain = world.send("plain");
            equal(-1L, ((MessageIdAdv) consumer.getLastMessageIds().get(0)).getEntryId(), "behind an open one");
            abort(x);
            last(consumer, plain);
            Transaction y = world.begin();
            MessageId of = world.send(y, "y");
            last(consumer, plain);
            commit(y);
            last(consumer, of);
        }
    }

    private static void last(Consumer<byte[]> consumer, MessageId wanted) throws Exception {
        equal(0, consumer.getLastMessageIds().get(0).compareTo(wanted), "last message id");
    }

    private static List<String> rest(Reader<byte[]> reader) throws Exception {
        List<String> found = new ArrayList<>();
        while (reader.hasMessageAvailable()) {
            found.add(new String(reader.readNext(SECONDS_MAX, TimeUnit.SECONDS).getData()));
        }
        return found;
    }

    private static void startsInside(World world) throws Exception {
        world.send("a");
        Transaction x = world.begin();
        MessageId of = world.send(x, "x");
        world.send("b");
        try (Reader<byte[]> behind = world.client().newReader().topic(world.topic()).startMessageId(of).create();
                Reader<byte[]> with = world.client().newReader().topic(world.topic()).startMessageId(of)
                        .startMessageIdInclusive().create()) {
            equal(List.of(), rest(behind), "while it is open");
            equal(List.of(), rest(with), "while it is open");
            commit(x);
            equal(List.of("b"), rest(behind), "behind it");
            equal(List.of("x", "b"), rest(with), "with it");
            Transaction y = world.begin();
            MessageId aborted = world.send(y, "y");
            abort(y);
            with.seek(aborted);
            equal(List.of(), rest(with), "from what was aborted");
            world.send("c");
            equal(List.of("c"), rest(with), "what came later");
        }
    }

    private static void newSubscriptions(World world) throws Exception {
        world.send("a");
        Transaction x = world.begin();
        world.send(x, "x0");
        world.send("b");
        try (Consumer<byte[]> latest = world.client().newConsumer().topic(world.topic()).subscriptionName("latest").subscribe();
                Consumer<byte[]> earliest = world.consumer(SubscriptionType.Exclusive)) {
            world.send(x, "x1");
            world.send("c");
            sees(earliest, "a");
            nothing(latest);
            commit(x);
            sees(latest, "x1", "c");
            sees(earliest, "x0", "b", "x1", "c");
        }
    }

    private static void seekByTime(World world) throws Exception {
        world.client().newConsumer().topic(world.topic()).subscriptionName("hold").subscribe().close();
        world.send("a");
        Transaction x = world.begin();
        long first = between();
        world.send(x, "x0");
        world.send("p0");
        long second = between();
        world.send(x, "x1");
        world.send("p1");
        try (Consumer<byte[]> consumer = world.consumer(SubscriptionType.Exclusive)) {
            sees(consumer, "a");
            consumer.seek(second);
            nothing(consumer);
            consumer.seek(first);
            nothing(consumer);
            commit(x);
            sees(consumer, "x0", "p0", "x1", "p1");
            consumer.seek(second);
            sees(consumer, "x1", "p1");
        }
    }

    /** A time that is neither that of what was sent before nor of what is sent afterwards. */
    private static long between() throws InterruptedException {
        Thread.sleep(20);
        long time = System.currentTimeMillis();
        Thread.sleep(20);
        return time;
    }

    private static Producer<byte[]> batching(World world) throws Exception {
        return world.client().newProducer().topic(world.topic()).batchingMaxMessages(6)
                .batchingMaxPublishDelay(1, TimeUnit.SECONDS).create();
    }

    private static void partsAfterUnload(World world) throws Exception {
        try (Consumer<byte[]> consumer = world.consumer(SubscriptionType.Shared); Producer<byte[]> batching = batching(world)) {
            send(batching, 0, 6);
            List<Message<byte[]>> all = take(consumer, 6);
            Transaction x = world.begin();
            Transaction y = world.begin();
            acknowledge(consumer, all.get(0), x);
            acknowledge(consumer, all.get(5), x);
            acknowledge(consumer, all.get(1), y);
            world.server().admin("PUT", world.topic(), "/unload", "");
            seesSorted(consumer, "2", "3", "4");
            conflict(server -> acknowledge(consumer, all.get(5), y), "pending since before the unload");
            abort(x);
            seesSorted(consumer, "0", "2", "3", "4", "5");
            abort(y);
            seesSorted(consumer, "0", "1", "2", "3", "4", "5");
        }
    }

    private static void namedTwice(World world) throws Exception {
        try (Consumer<byte[]> consumer = world.consumer(SubscriptionType.Shared); Producer<byte[]> batching = batching(world)) {
            send(batching, 0, 3);
            world.send("3");
            List<MessageId> ids = take(consumer, 4).stream().map(Message::getMessageId).toList();
            Transaction x = world.begin();
            for (List<MessageId> named : List.of(List.of(ids.get(0), ids.get(1), ids.get(0)), List.of(ids.get(3), ids.get(3)))) {
                consumer.acknowledgeAsync(named, x).get(SECONDS_MAX, TimeUnit.SECONDS);
            }
            commit(x);
            consumer.redeliverUnacknowledgedMessages();
            sees(consumer, "2");
        }
    }

    private static void deadLetters(World world) throws Exception {
        String dead = world.topic() + "-dead";
        try (Consumer<byte[]> letters = world.client().newConsumer().topic(dead).subscriptionName("d").subscribe();
                Consumer<byte[]> consumer = world.client().newConsumer().topic(world.topic()).subscriptionName("s")
                        .subscriptionType(SubscriptionType.Shared).acknowledgmentGroupTime(0, TimeUnit.SECONDS)
                        .deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(2).deadLetterTopic(dead).build())
                        .subscribe()) {
            world.send("m");
            for (int count = 0; count < 3; count++) {
                Message<byte[]> message = next(consumer);
                equal(count, message.getRedeliveryCount(), "redelivery count");
                Transaction x = world.begin();
                acknowledge(consumer, message, x);
                abort(x);
            }
            equal("m", text(next(letters)), "after the third abort");
            nothing(consumer);
            eventually(() -> world.backlog() == 0, "an empty backlog");
        }
    }

    private static void keys(World world) throws Exception {
        try (Consumer<byte[]> one = world.consumer(SubscriptionType.Key_Shared);
                Consumer<byte[]> two = world.consumer(SubscriptionType.Key_Shared)) {
            for (int n = 0; n < 12; n++) {
                world.producer().newMessage().key("k" + n % 4).value(("m" + n).getBytes()).send();
            }
            var of = new HashMap<String, Consumer<byte[]>>();
            List<Message<byte[]>> all = new ArrayList<>();
            Transaction x = world.begin();
            for (var consumer : List.of(one, two)) {
                Message<byte[]> message;
                while ((message = consumer.receive(1, TimeUnit.SECONDS)) != null) {
                    of.put(message.getKey(), consumer);
                    all.add(message);
                }
            }
            equal(12, all.size(), "delivered");
            for (var message : all) {
                acknowledge(of.get(message.getKey()), message, x);
            }
            abort(x);
            int again = 0;
            for (var consumer : List.of(one, two)) {
                Message<byte[]> message;
                while ((message = consumer.receive(1, TimeUnit.SECONDS)) != null) {
                    that(of.get(message.getKey()) == consumer, message.getKey() + " at another consumer");
                    equal(1, message.getRedeliveryCount(), "redelivery count");
                    again++;
                }
            }
            equal(12, again, "delivered again");
        }
    }

    private static void morePartitions(Server server) throws Exception {
        String topic = server.partitioned(2);
        PulsarClient client = server.withTransactions();
        try (Producer<byte[]> producer = client.newProducer().topic(topic).enableBatching(false)
                        .autoUpdatePartitionsInterval(1, TimeUnit.SECONDS).sendTimeout(0, TimeUnit.SECONDS)
                        .messageRoutingMode(MessageRoutingMode.RoundRobinPartition).create();
                Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName("s")
                        .subscriptionType(SubscriptionType.Shared).autoUpdatePartitionsInterval(1, TimeUnit.SECONDS)
                        .subscribe()) {
            Transaction x = client.newTransaction().build().get(SECONDS_MAX, TimeUnit.SECONDS);
            producer.newMessage(x).value("0".getBytes()).send();
            server.admin("POST", topic, "/partitions", "4");
            int[] sent = {1};
            eventually(() -> producer.newMessage(x).value(Integer.toString(sent[0]++).getBytes()).send().toString()
                    .contains(":3:"), "a message in a new partition");
            nothing(consumer);
            commit(x);
            equal(sent[0], new HashSet<>(texts(take(consumer, sent[0]))).size(), "messages of all partitions");
        }
    }

    private static void sequenceIds(Server server) throws Exception {
        String namespace = "public/java-tx-" + UUID.randomUUID();
        server.adminPath("PUT", "/admin/v2/namespaces/" + namespace, "{}");
        server.adminPath("POST", "/admin/v2/namespaces/" + namespace + "/deduplication", "true");
        String topic = "persistent://" + namespace + "/t";
        try (Consumer<byte[]> consumer = server.withTransactions().newConsumer().topic(topic).subscriptionName("s").subscribe();
                Producer<byte[]> producer = server.withTransactions().newProducer().topic(topic).producerName("p")
                        .enableBatching(false).sendTimeout(0, TimeUnit.SECONDS).create()) {
            Transaction x = server.withTransactions().newTransaction().build().get(SECONDS_MAX, TimeUnit.SECONDS);
            producer.newMessage(x).sequenceId(1).value("x1".getBytes()).send();
            producer.newMessage(x).sequenceId(2).value("x2".getBytes()).send();
            server.admin("PUT", topic, "/unload", "");
            producer.newMessage(x).sequenceId(2).value("again".getBytes()).send();
            producer.newMessage().sequenceId(1).value("again".getBytes()).send();
            commit(x);
            producer.newMessage().sequenceId(2).value("again".getBytes()).send();
            producer.newMessage().sequenceId(3).value("3".getBytes()).send();
            sees(consumer, "x1", "x2", "3");
        }
    }

    private static void compactedBatch(World world) throws Exception {
        try (Producer<byte[]> batching = world.client().newProducer().topic(world.topic()).batchingMaxMessages(4)
                .batchingMaxPublishDelay(1, TimeUnit.SECONDS).create()) {
            Transaction x = world.begin();
            List<CompletableFuture<MessageId>> sent = new ArrayList<>();
            for (String pair : List.of("a0", "b1", "a2", "c3")) {
                sent.add(batching.newMessage(x).key(pair.substring(0, 1)).value(pair.getBytes()).sendAsync());
            }
            for (var each : sent) {
                each.get(SECONDS_MAX, TimeUnit.SECONDS);
            }
            world.producer().newMessage().key("b").value("b4".getBytes()).send();
            commit(x);
            Transaction y = world.begin();
            world.producer().newMessage(y).key("c").value("c5".getBytes()).send();
            for (boolean open : List.of(true, false)) {
                // In Pulsar the first run may find nothing yet.
                eventually(() -> compactedView(world).equals(List.of("a2", "c3", "b4")), "the view");
                if (open) {
                    abort(y);
                }
            }
        }
    }

    private static List<String> compactedView(World world) throws Exception {
        world.server().admin("PUT", world.topic(), "/compaction", "");
        eventually(() -> world.server().admin("GET", world.topic(), "/compaction", "").contains("SUCCESS"), "its end");
        try (Reader<byte[]> reader = world.client().newReader().topic(world.topic()).readCompacted(true)
                .startMessageId(MessageId.earliest).create()) {
            return rest(reader);
        }
    }
}
