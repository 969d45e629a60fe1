package interop;

import static interop.Check.*;
import static interop.Transactions.*;

import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.transaction.Transaction;
import org.apache.pulsar.client.api.transaction.TransactionCoordinatorClientException;
import org.apache.pulsar.client.impl.PulsarClientImpl;

/** Open transactions beside everything else that a topic has. */
final class TransactionsBeside {
    private TransactionsBeside() {}

    static void list(Map<String, Main.Scenario> scenarios) {
        scenarios.put("transactions: cumulative beside individual ones", in(TransactionsBeside::cumulativeAndIndividual));
        scenarios.put("transactions: half a batch, cumulatively", in(TransactionsBeside::halfBatch));
        scenarios.put("transactions: times", in(TransactionsBeside::times));
        scenarios.put("transactions: partitions", TransactionsBeside::partitions);
        scenarios.put("transactions: acknowledged chunks", in(TransactionsBeside::chunks));
        scenarios.put("transactions: seek", in(TransactionsBeside::seek));
        scenarios.put("transactions: a conflict before an unload", in(TransactionsBeside::conflictBeforeUnload));
        scenarios.put("transactions: a deleted topic", in(TransactionsBeside::deletedTopic));
        scenarios.put("transactions: a deleted subscription", in(TransactionsBeside::deletedSubscription));
        scenarios.put("transactions: expiry", in(TransactionsBeside::expiry));
        scenarios.put("transactions: a cleared backlog", in(TransactionsBeside::clearedBacklog));
        scenarios.put("transactions: a terminated topic", in(TransactionsBeside::terminatedTopic));
        scenarios.put("transactions: a compaction", in(TransactionsBeside::compaction));
        scenarios.put("transactions: de-duplication", TransactionsBeside::deduplication);
        scenarios.put("transactions: a late message", in(TransactionsBeside::lateMessage));
    }

    private static List<Message<byte[]>> sent(World world, Consumer<byte[]> consumer, int count) throws Exception {
        for (int n = 0; n < count; n++) {
            world.send("m" + n);
        }
        return take(consumer, count);
    }

    private static void cumulativeAndIndividual(World world) throws Exception {
        try (Consumer<byte[]> consumer = world.consumer(SubscriptionType.Exclusive)) {
            List<Message<byte[]>> all = sent(world, consumer, 5);
            Transaction x = world.begin();
            Transaction y = world.begin();
            cumulatively(consumer, all.get(2), x);
            acknowledge(consumer, all.get(1), y);
            acknowledge(consumer, all.get(4), y);
            consumer.acknowledgeCumulative(all.get(3));
            eventually(() -> world.backlog() == 1, "the last message");
            conflict(server -> cumulatively(consumer, all.get(3), x), "in front of the cursor");
            conflict(server -> cumulatively(consumer, all.get(1), x), "in front of the cursor");
            abort(x);
            nothing(consumer);
            commit(y);
            eventually(() -> world.backlog() == 0, "an empty backlog");
        }
    }

    private static void halfBatch(World world) throws Exception {
        try (Producer<byte[]> batching = world.client().newProducer().topic(world.topic()).batchingMaxMessages(4)
                .batchingMaxPublishDelay(1, TimeUnit.SECONDS).create()) {
            Transaction x = world.begin();
            try (Consumer<byte[]> consumer = world.consumer(SubscriptionType.Exclusive)) {
                send(batching, 0, 4);
                cumulatively(consumer, take(consumer, 4).get(1), x);
            }
            commit(x);
            try (Consumer<byte[]> consumer = world.consumer(SubscriptionType.Exclusive)) {
                equal(List.of("2", "3"), texts(take(consumer, 2)), "the other half");
                nothing(consumer);
            }
        }
    }

    private static void times(World world) throws Exception {
        try (Consumer<byte[]> consumer = world.consumer(SubscriptionType.Exclusive)) {
            for (long ms : List.of(0L, -5L)) {
                Transaction x = world.begin(ms);
                refused(TransactionCoordinatorClientException.class, server -> commit(x), "ended at once");
            }
            Transaction x = world.begin(Duration.ofDays(10).toMillis());
            world.send(x, "x0");
            commit(x);
            equal("x0", text(next(consumer)), "in ten days");
        }
    }

    private static void partitions(Server server) throws Exception {
        String topic = server.partitioned(3);
        Transaction x = server.withTransactions().newTransaction().build().get(SECONDS_MAX, TimeUnit.SECONDS);
        try (Producer<byte[]> producer = server.withTransactions().newProducer().topic(topic).create();
                Consumer<byte[]> consumer = server.withTransactions().newConsumer().topic(topic).subscriptionName("s")
                        .subscribe()) {
            for (int n = 0; n < 9; n++) {
                producer.newMessage(x).key("k" + n).value(("" + n).getBytes()).send();
            }
            nothing(consumer);
            commit(x);
            equal(numbers(0, 9), texts(take(consumer, 9)).stream().sorted().toList(), "all partitions");
        }
    }

    private static void chunks(World world) throws Exception {
        String value = "0123456789".repeat(300);
        try (Consumer<byte[]> consumer = world.consumer(SubscriptionType.Shared);
                Producer<byte[]> chunking = world.client().newProducer().topic(world.topic()).enableBatching(false)
                        .enableChunking(true).chunkMaxMessageSize(1000).create()) {
            chunking.send(value.getBytes());
            Transaction x = world.begin();
            acknowledge(consumer, next(consumer), x);
            abort(x);
            Message<byte[]> again = next(consumer);
            equal(value, text(again), "the whole message comes again");
            Transaction y = world.begin();
            acknowledge(consumer, again, y);
            commit(y);
            eventually(() -> world.backlog() == 0, "an empty backlog");
        }
    }

    private static void seek(World world) throws Exception {
        try (Consumer<byte[]> consumer = world.consumer(SubscriptionType.Shared)) {
            List<Message<byte[]>> all = sent(world, consumer, 3);
            Transaction x = world.begin();
            acknowledge(consumer, all.get(1), x);
            consumer.seek(MessageId.earliest);
            equal(List.of("m0", "m2"), texts(take(consumer, 2)), "what isn't pending");
            nothing(consumer);
            commit(x);
            nothing(consumer);
            eventually(() -> world.backlog() == 2, "the others");
        }
    }

    private static void conflictBeforeUnload(World world) throws Exception {
        try (Consumer<byte[]> consumer = world.consumer(SubscriptionType.Shared)) {
            List<Message<byte[]>> all = sent(world, consumer, 2);
            Transaction x = world.begin();
            Transaction y = world.begin();
            acknowledge(consumer, all.get(0), x);
            conflict(server -> acknowledge(consumer, all.get(0), y), "pending in another");
            world.server().admin("PUT", world.topic(), "/unload", "");
            equal("m1", text(next(consumer)), "what isn't pending");
            abort(y);
            nothing(consumer);
            commit(x);
            eventually(() -> world.backlog() == 1, "m1");
        }
    }

    private static void deletedTopic(World world) throws Exception {
        Transaction x = world.begin();
        try (Consumer<byte[]> consumer = world.consumer(SubscriptionType.Shared)) {
            List<Message<byte[]>> all = sent(world, consumer, 1);
            world.send(x, "x0");
            acknowledge(consumer, all.get(0), x);
        }
        world.producer().close();
        world.server().admin("DELETE", world.topic(), "?force=true", "");
        commit(x);
    }

    private static void deletedSubscription(World world) throws Exception {
        try (Consumer<byte[]> consumer = world.consumer(SubscriptionType.Shared)) {
            List<Message<byte[]>> all = sent(world, consumer, 2);
            Transaction x = world.begin();
            Transaction y = world.begin();
            acknowledge(consumer, all.get(0), x);
            acknowledge(consumer, all.get(1), y);
            consumer.unsubscribe();
            commit(x);
            abort(y);
        }
        try (Consumer<byte[]> consumer = world.consumer(SubscriptionType.Shared)) {
            equal(List.of("m0", "m1"), texts(take(consumer, 2)), "a new subscription of this name");
        }
    }

    /** Messages in front of an open transaction, in it and behind it; the backlog when a cursor was moved. */
    private static void moved(World world, Main.Scenario move) throws Exception {
        world.consumer(SubscriptionType.Shared).close();
        world.send("plain");
        Transaction x = world.begin();
        world.send(x, "x0");
        world.send("behind");
        boolean pulsar = world.server().isPulsar(); // there they are lost
        eventually(() -> {
            move.run(world.server());
            return world.backlog() == (pulsar ? 0 : 2);
        }, "in front of the transaction");
        commit(x);
        try (Consumer<byte[]> consumer = world.consumer(SubscriptionType.Shared)) {
            if (!pulsar) {
                equal(List.of("x0", "behind"), texts(take(consumer, 2)), "not lost");
            }
            nothing(consumer);
        }
    }

    private static void expiry(World world) throws Exception {
        moved(world, server -> {
            try {
                server.admin("POST", world.topic(), "/subscription/s/expireMessages/1", "");
            } catch (AssertionError busy) {
                that(busy.getMessage().contains(": 409 "), busy.getMessage());
            }
        });
    }

    private static void clearedBacklog(World world) throws Exception {
        moved(world, server -> server.admin("POST", world.topic(), "/subscription/s/skip_all", ""));
    }

    private static void terminatedTopic(World world) throws Exception {
        Transaction x = world.begin();
        Transaction y = world.begin();
        world.send(x, "x0");
        world.send(y, "y0");
        world.send("behind");
        world.server().admin("POST", world.topic(), "/terminate", "");
        if (world.server().isPulsar()) {
            return; // there the commit never returns
        }
        try (Consumer<byte[]> consumer = world.consumer(SubscriptionType.Exclusive)) {
            commit(x);
            equal("x0", text(next(consumer)), "committed");
            abort(y);
            Message<byte[]> last = next(consumer);
            equal("behind", text(last), "behind what was aborted");
            consumer.acknowledgeCumulative(last);
            eventually(consumer::hasReachedEndOfTopic, "the end");
        }
    }

    private static void compaction(World world) throws Exception {
        Transaction x = world.begin();
        Transaction y = world.begin();
        world.producer().newMessage().key("a").value("a1".getBytes()).send();
        world.producer().newMessage(x).key("a").value("a2".getBytes()).send();
        world.producer().newMessage(y).key("b").value("b1".getBytes()).send();
        abort(y);
        commit(x);
        Transaction z = world.begin();
        world.producer().newMessage(z).key("a").value("a3".getBytes()).send();
        world.server().admin("PUT", world.topic(), "/compaction", "");
        eventually(() -> world.server().admin("GET", world.topic(), "/compaction", "").contains("SUCCESS"), "a compaction");
        abort(z);
        world.send("end");
        try (Reader<byte[]> reader = world.client().newReader().topic(world.topic()).readCompacted(true)
                .startMessageId(MessageId.earliest).create()) {
            for (String wanted : List.of("a2", "end")) {
                Message<byte[]> message = reader.readNext(SECONDS_MAX, TimeUnit.SECONDS);
                equal(wanted, message == null ? null : text(message), "what was committed");
            }
        }
    }

    private static void deduplication(Server server) throws Exception {
        String namespace = "public/java-tx-" + UUID.randomUUID();
        server.adminPath("PUT", "/admin/v2/namespaces/" + namespace, "{}");
        server.adminPath("POST", "/admin/v2/namespaces/" + namespace + "/deduplication", "true");
        String topic = "persistent://" + namespace + "/t";
        try (Consumer<byte[]> consumer = server.withTransactions().newConsumer().topic(topic).subscriptionName("s")
                        .subscribe();
                Producer<byte[]> producer = server.withTransactions().newProducer().topic(topic).producerName("p")
                        .enableBatching(false).sendTimeout(0, TimeUnit.SECONDS).create()) {
            Transaction x = server.withTransactions().newTransaction().build().get(SECONDS_MAX, TimeUnit.SECONDS);
            producer.newMessage(x).sequenceId(10).value("x10".getBytes()).send();
            producer.newMessage(x).sequenceId(10).value("x10 again".getBytes()).send();
            producer.newMessage(x).sequenceId(9).value("x9".getBytes()).send();
            abort(x);
            producer.newMessage().sequenceId(10).value("10".getBytes()).send();
            producer.newMessage().sequenceId(11).value("11".getBytes()).send();
            List<String> wanted = server.isPulsar() ? List.of("11") : List.of("10", "11");
            equal(wanted, texts(take(consumer, wanted.size())), "sent again after the abort");
            nothing(consumer);
        }
    }

    private static void lateMessage(World world) throws Exception {
        Transaction x = world.begin();
        world.send(x, "x0");
        // Not by the transaction itself, which would send nothing any more.
        ((PulsarClientImpl) world.client()).getTcClient().commit(x.getTxnID());
        if (world.server().isPulsar()) {
            world.send(x, "late");
            return; // nothing behind it is delivered now
        }
        refused(PulsarClientException.class, server -> world.send(x, "late"), "a late message");
        try (Consumer<byte[]> consumer = world.consumer(SubscriptionType.Shared)) {
            world.send("plain");
            equal(List.of("x0", "plain"), texts(take(consumer, 2)), "without the late one");
        }
    }
}
