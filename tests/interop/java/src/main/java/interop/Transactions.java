package interop;

import static interop.Check.*;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.transaction.Transaction;
import org.apache.pulsar.client.api.transaction.TransactionCoordinatorClientException.InvalidTxnStatusException;

/** Messages and acknowledgements that count together or not at all. */
final class Transactions {
    private Transactions() {}

    static void list(Map<String, Main.Scenario> scenarios) {
        scenarios.put("transactions: messages appear with the commit", in(Transactions::committed));
        scenarios.put("transactions: aborted messages never appear", in(Transactions::aborted));
        scenarios.put("transactions: batches of several", in(Transactions::batches));
        scenarios.put("transactions: an end is asked for twice", in(Transactions::endedTwice));
        scenarios.put("transactions: time-out", in(Transactions::timedOut));
        scenarios.put("transactions: acknowledgements of an aborted one", in(Transactions::acknowledgedAndAborted));
        scenarios.put("transactions: acknowledgements outlive their consumer", in(Transactions::consumerReplaced));
        scenarios.put("transactions: conflicts", in(Transactions::conflicts));
        scenarios.put("transactions: cumulative acknowledgements", in(Transactions::cumulative));
        scenarios.put("transactions: parts of a batch", in(Transactions::partsOfBatch));
        scenarios.put("transactions: a failed acknowledgement fails the commit", in(Transactions::failedOperation));
        scenarios.put("transactions: readers", in(Transactions::readers));
        scenarios.put("transactions: delayed messages", in(Transactions::delayed));
        scenarios.put("transactions: keys of an aborted acknowledgement", in(Transactions::keyShared));
        scenarios.put("transactions: chunked messages", in(Transactions::chunked));
        scenarios.put("transactions: an unloaded topic", in(Transactions::unloaded));
        scenarios.put("transactions: from one topic to another", in(Transactions::transformed));
    }

    /** A topic, a client with transactions, a producer and a consumer of every message. */
    record World(Server server, PulsarClient client, String topic, Producer<byte[]> producer) {
        Transaction begin() throws Exception {
            return begin(60_000);
        }

        Transaction begin(long timeoutMs) throws Exception {
            return client.newTransaction().withTransactionTimeout(timeoutMs, TimeUnit.MILLISECONDS).build()
                    .get(SECONDS_MAX, TimeUnit.SECONDS);
        }

        MessageId send(Transaction transaction, String value) throws Exception {
            return producer.newMessage(transaction).value(value.getBytes()).send();
        }

        MessageId send(String value) throws Exception {
            return producer.send(value.getBytes());
        }

        Consumer<byte[]> consumer(SubscriptionType type) throws Exception {
            return client.newConsumer().topic(topic).subscriptionName("s").subscriptionType(type)
                    .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                    .acknowledgmentGroupTime(0, TimeUnit.SECONDS).enableBatchIndexAcknowledgment(true).subscribe();
        }

        long backlog() throws Exception {
            String stats = server.admin("GET", topic, "/stats", "");
            int at = stats.indexOf("\"msgBacklog\":", stats.indexOf("\"subscriptions\""));
            return Long.parseLong(stats.substring(at + 13).split("[^0-9]", 2)[0]);
        }
    }

    interface Part {
        void run(World world) throws Exception;
    }

    static Main.Scenario in(Part part) {
        return server -> {
            String topic = "persistent://public/default/java-tx-" + UUID.randomUUID();
            PulsarClient client = server.withTransactions();
            try (Producer<byte[]> producer = client.newProducer().topic(topic).enableBatching(false)
                    .sendTimeout(0, TimeUnit.SECONDS).create()) {
                part.run(new World(server, client, topic, producer));
            }
        };
    }

    static void commit(Transaction transaction) throws Exception {
        transaction.commit().get(SECONDS_MAX, TimeUnit.SECONDS);
    }

    static void abort(Transaction transaction) throws Exception {
        transaction.abort().get(SECONDS_MAX, TimeUnit.SECONDS);
    }

    static void acknowledge(Consumer<byte[]> consumer, Message<byte[]> message, Transaction transaction)
            throws Exception {
        consumer.acknowledgeAsync(message.getMessageId(), transaction).get(SECONDS_MAX, TimeUnit.SECONDS);
    }

    static void cumulatively(Consumer<byte[]> consumer, Message<byte[]> message, Transaction transaction)
            throws Exception {
        consumer.acknowledgeCumulativeAsync(message.getMessageId(), transaction).get(SECONDS_MAX, TimeUnit.SECONDS);
    }

    /** Runs what must fail with an exception of that class, perhaps as the cause of another. */
    static void refused(Class<? extends Throwable> expected, Main.Scenario action, String what) {
        try {
            action.run(null);
        } catch (Throwable error) {
            Throwable cause = error;
            while (cause != null && !expected.isInstance(cause)) {
                cause = cause.getCause();
            }
            that(cause != null, what + ": expected " + expected.getSimpleName() + ", got " + error);
            return;
        }
        throw new AssertionError(what + ": expected " + expected.getSimpleName() + ", nothing was thrown");
    }

    static void conflict(Main.Scenario action, String what) {
        refused(PulsarClientException.TransactionConflictException.class, action, what);
    }

    private static void committed(World world) throws Exception {
        try (Consumer<byte[]> consumer = world.consumer(SubscriptionType.Shared)) {
            world.send("before");
            Transaction x = world.begin();
            Transaction y = world.begin();
            world.send(x, "x0");
            world.send("plain");
            world.send(y, "y0");
            world.send(x, "x1");
            equal(List.of("before"), texts(take(consumer, 1)), "in front of it");
            nothing(consumer);
            commit(y);
            nothing(consumer);
            commit(x);
            equal(List.of("x0", "plain", "y0", "x1"), texts(take(consumer, 4)), "in the log's order");
            commit(world.begin());
            abort(world.begin());
        }
    }

    private static void aborted(World world) throws Exception {
        try (Consumer<byte[]> consumer = world.consumer(SubscriptionType.Exclusive)) {
            Transaction x = world.begin();
            world.send(x, "x0");
            world.send("plain");
            world.send(x, "x1");
            nothing(consumer);
            abort(x);
            consumer.acknowledge(next(consumer));
            nothing(consumer);
            world.send("behind");
            equal("behind", text(next(consumer)), "behind it");
        }
        try (Consumer<byte[]> late = world.client.newConsumer().topic(world.topic).subscriptionName("late")
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe()) {
            equal(List.of("plain", "behind"), texts(take(late, 2)), "who comes later");
            nothing(late);
        }
    }

    private static void batches(World world) throws Exception {
        try (Consumer<byte[]> consumer = world.consumer(SubscriptionType.Shared);
                Producer<byte[]> batching = world.client.newProducer().topic(world.topic).batchingMaxMessages(4)
                        .batchingMaxPublishDelay(1, TimeUnit.SECONDS).sendTimeout(0, TimeUnit.SECONDS).create()) {
            Transaction x = world.begin();
            Transaction y = world.begin();
            List<CompletableFuture<MessageId>> sent = new ArrayList<>();
            for (int n = 0; n < 4; n++) {
                sent.add(batching.newMessage(x).value(("x" + n).getBytes()).sendAsync());
            }
            sent.add(batching.newMessage(y).value("y0".getBytes()).sendAsync());
            sent.add(batching.newMessage(y).value("y1".getBytes()).sendAsync());
            // No plain ones: the client may put them into the batch of a transaction.
            batching.flush();
            for (var each : sent) {
                each.get(SECONDS_MAX, TimeUnit.SECONDS);
            }
            abort(x);
            commit(y);
            equal(List.of("y0", "y1"), texts(take(consumer, 2)), "without the aborted batch");
            nothing(consumer);
        }
    }

    private static void endedTwice(World world) throws Exception {
        Transaction x = world.begin();
        world.send(x, "x0");
        commit(x);
        refused(InvalidTxnStatusException.class, server -> commit(x), "commit after commit");
        refused(InvalidTxnStatusException.class, server -> abort(x), "abort after commit");
        Transaction y = world.begin();
        abort(y);
        refused(InvalidTxnStatusException.class, server -> commit(y), "commit after abort");
    }

    private static void timedOut(World world) throws Exception {
        try (Consumer<byte[]> consumer = world.consumer(SubscriptionType.Shared)) {
            Transaction x = world.begin(1_500);
            world.send(x, "x0");
            world.send("plain");
            equal("plain", text(next(consumer)), "behind what timed out");
            refused(InvalidTxnStatusException.class, server -> commit(x), "commit after the time-out");
            nothing(consumer);
        }
    }

    private static void acknowledgedAndAborted(World world) throws Exception {
        try (Consumer<byte[]> consumer = world.consumer(SubscriptionType.Shared)) {
            for (int n = 0; n < 3; n++) {
                world.send("m" + n);
            }
            List<Message<byte[]>> all = take(consumer, 3);
            Transaction x = world.begin();
            acknowledge(consumer, all.get(0), x);
            acknowledge(consumer, all.get(1), x);
            consumer.redeliverUnacknowledgedMessages();
            equal(List.of("m2"), texts(take(consumer, 1)), "what isn't pending comes again");
            nothing(consumer);
            abort(x);
            List<Message<byte[]>> again = take(consumer, 2);
            equal(List.of("m0", "m1"), texts(again).stream().sorted().toList(), "redelivered");
            that(again.stream().allMatch(each -> each.getRedeliveryCount() == 1), "redelivery count");
            Transaction y = world.begin();
            for (Message<byte[]> each : again) {
                acknowledge(consumer, each, y);
            }
            commit(y);
            consumer.acknowledge(all.get(2));
            eventually(() -> world.backlog() == 0, "an empty backlog");
        }
    }

    private static void consumerReplaced(World world) throws Exception {
        Transaction x;
        Transaction y;
        try (Consumer<byte[]> consumer = world.consumer(SubscriptionType.Shared)) {
            for (int n = 0; n < 4; n++) {
                world.send("m" + n);
            }
            List<Message<byte[]>> all = take(consumer, 4);
            x = world.begin();
            y = world.begin();
            acknowledge(consumer, all.get(0), x);
            acknowledge(consumer, all.get(1), x);
            acknowledge(consumer, all.get(2), y);
            acknowledge(consumer, all.get(3), y);
        }
        try (Consumer<byte[]> consumer = world.consumer(SubscriptionType.Shared)) {
            nothing(consumer);
            commit(x);
            nothing(consumer);
            abort(y);
            List<Message<byte[]>> again = take(consumer, 2);
            equal(List.of("m2", "m3"), texts(again).stream().sorted().toList(), "those of the aborted one");
            consumer.acknowledge(again.get(0));
            consumer.acknowledge(again.get(1));
            eventually(() -> world.backlog() == 0, "an empty backlog");
        }
    }

    private static void conflicts(World world) throws Exception {
        try (Consumer<byte[]> consumer = world.consumer(SubscriptionType.Shared)) {
            for (int n = 0; n < 4; n++) {
                world.send("m" + n);
            }
            List<Message<byte[]>> all = take(consumer, 4);
            Transaction x = world.begin();
            Transaction y = world.begin();
            acknowledge(consumer, all.get(0), x);
            conflict(server -> acknowledge(consumer, all.get(0), y), "pending in another");
            conflict(server -> acknowledge(consumer, all.get(0), x), "pending in the same");
            consumer.acknowledge(all.get(1));
            Transaction z = world.begin();
            eventually(() -> {
                // A plain acknowledgement isn't answered.
                try {
                    acknowledge(consumer, all.get(1), z);
                    return false;
                } catch (ExecutionException refused) {
                    return true;
                }
            }, "acknowledged already");
            // One outside of transactions wins over a pending one.
            Transaction w = world.begin();
            acknowledge(consumer, all.get(2), w);
            consumer.acknowledge(all.get(2));
            abort(w);
            nothing(consumer);
            consumer.acknowledge(all.get(3));
            abort(x);
            consumer.acknowledge(next(consumer));
            eventually(() -> world.backlog() == 0, "an empty backlog");
        }
    }

    private static void cumulative(World world) throws Exception {
        try (Consumer<byte[]> consumer = world.consumer(SubscriptionType.Exclusive)) {
            for (int n = 0; n < 5; n++) {
                world.send("m" + n);
            }
            List<Message<byte[]>> all = take(consumer, 5);
            Transaction x = world.begin();
            Transaction y = world.begin();
            cumulatively(consumer, all.get(2), x);
            conflict(server -> cumulatively(consumer, all.get(3), y), "two cumulative ones");
            Transaction z = world.begin();
            acknowledge(consumer, all.get(1), z);
            acknowledge(consumer, all.get(4), z);
            commit(z);
            commit(x);
            int left = world.server.isPulsar() ? 2 : 1; // there z is forgotten, since x has a cumulative one
            eventually(() -> world.backlog() == left, "m3 alone isn't acknowledged");
        }
    }

    private static void partsOfBatch(World world) throws Exception {
        try (Consumer<byte[]> consumer = world.consumer(SubscriptionType.Shared);
                Producer<byte[]> batching = world.client.newProducer().topic(world.topic).batchingMaxMessages(4)
                        .batchingMaxPublishDelay(1, TimeUnit.SECONDS).create()) {
            send(batching, 0, 4);
            List<Message<byte[]>> all = take(consumer, 4);
            Transaction x = world.begin();
            Transaction y = world.begin();
            acknowledge(consumer, all.get(0), x);
            acknowledge(consumer, all.get(1), y);
            conflict(server -> acknowledge(consumer, all.get(0), y), "the same message of the batch");
            consumer.acknowledge(all.get(2));
            commit(x);
            abort(y);
            List<String> again = texts(take(consumer, 2)).stream().sorted().toList();
            equal(List.of("1", "3"), again, "what was aborted, and what nobody acknowledged");
        }
    }

    private static void failedOperation(World world) throws Exception {
        try (Consumer<byte[]> consumer = world.consumer(SubscriptionType.Shared)) {
            world.send("m0");
            Message<byte[]> message = next(consumer);
            Transaction x = world.begin();
            Transaction y = world.begin();
            acknowledge(consumer, message, x);
            conflict(server -> acknowledge(consumer, message, y), "pending in another");
            refused(PulsarClientException.TransactionHasOperationFailedException.class, server -> commit(y), "commit");
            commit(x);
            eventually(() -> world.backlog() == 0, "an empty backlog");
        }
    }

    private static void readers(World world) throws Exception {
        world.send("a");
        Transaction x = world.begin();
        world.send(x, "x");
        world.send("b");
        try (Reader<byte[]> reader = world.client.newReader().topic(world.topic).startMessageId(MessageId.earliest)
                .create()) {
            equal("a", new String(reader.readNext(SECONDS_MAX, TimeUnit.SECONDS).getData()), "first");
            that(!reader.hasMessageAvailable(), "nothing behind an open transaction");
            abort(x);
            eventually(reader::hasMessageAvailable, "a message behind it");
            equal("b", new String(reader.readNext(SECONDS_MAX, TimeUnit.SECONDS).getData()), "second");
            that(!reader.hasMessageAvailable(), "the end");
            Transaction y = world.begin();
            world.send(y, "y");
            abort(y);
            that(!reader.hasMessageAvailable(), "aborted ones at the end");
            reader.seek(MessageId.earliest);
            equal("a", new String(reader.readNext(SECONDS_MAX, TimeUnit.SECONDS).getData()), "again");
            equal("b", new String(reader.readNext(SECONDS_MAX, TimeUnit.SECONDS).getData()), "again");
        }
    }

    private static void delayed(World world) throws Exception {
        try (Consumer<byte[]> consumer = world.consumer(SubscriptionType.Shared)) {
            Transaction x = world.begin();
            world.producer.newMessage(x).value("x".getBytes()).deliverAfter(2, TimeUnit.SECONDS).send();
            Transaction y = world.begin();
            world.producer.newMessage(y).value("y".getBytes()).deliverAfter(1, TimeUnit.SECONDS).send();
            commit(x);
            abort(y);
            nothing(consumer);
            equal("x", text(next(consumer)), "delayed and committed");
            nothing(consumer);
        }
    }

    private static void keyShared(World world) throws Exception {
        try (Consumer<byte[]> consumer = world.consumer(SubscriptionType.Key_Shared)) {
            for (int n = 0; n < 3; n++) {
                world.producer.newMessage().key("k").value(("m" + n).getBytes()).send();
            }
            List<Message<byte[]>> all = take(consumer, 3);
            Transaction x = world.begin();
            acknowledge(consumer, all.get(0), x);
            abort(x);
            equal("m0", text(next(consumer)), "comes again");
        }
    }

    private static void chunked(World world) throws Exception {
        try (Consumer<byte[]> consumer = world.consumer(SubscriptionType.Shared);
                Producer<byte[]> chunking = world.client.newProducer().topic(world.topic).enableBatching(false)
                        .enableChunking(true).chunkMaxMessageSize(1000).sendTimeout(0, TimeUnit.SECONDS).create()) {
            Transaction x = world.begin();
            Transaction y = world.begin();
            String value = "0123456789".repeat(500);
            chunking.newMessage(x).value(value.getBytes()).send();
            chunking.newMessage(y).value("y".repeat(3000).getBytes()).send();
            nothing(consumer);
            abort(y);
            commit(x);
            equal(value, text(next(consumer)), "a message in chunks");
            nothing(consumer);
        }
    }

    private static void unloaded(World world) throws Exception {
        try (Consumer<byte[]> consumer = world.consumer(SubscriptionType.Shared)) {
            world.send("m0");
            Message<byte[]> message = next(consumer);
            Transaction x = world.begin();
            world.send(x, "x0");
            acknowledge(consumer, message, x);
            Transaction y = world.begin();
            world.send(y, "y0");
            abort(y);
            world.server.admin("PUT", world.topic, "/unload", "");
            world.send(x, "x1");
            world.send("plain");
            nothing(consumer);
            commit(x);
            List<Message<byte[]>> all = take(consumer, 3);
            equal(List.of("x0", "x1", "plain"), texts(all), "both parts, and what came behind");
            for (Message<byte[]> each : all) {
                consumer.acknowledge(each);
            }
            eventually(() -> world.backlog() == 0, "an empty backlog");
        }
    }

    private static void transformed(World world) throws Exception {
        String to = world.topic + "-to";
        try (Consumer<byte[]> consumer = world.consumer(SubscriptionType.Shared);
                Producer<byte[]> producer = world.client.newProducer().topic(to).sendTimeout(0, TimeUnit.SECONDS)
                        .create();
                Consumer<byte[]> result = world.client.newConsumer().topic(to).subscriptionName("r")
                        .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe()) {
            send(world.producer, 0, 40);
            List<String> kept = new ArrayList<>();
            while (kept.size() < 40) {
                Message<byte[]> message = next(consumer);
                boolean commits = Integer.parseInt(text(message)) % 3 != 0 || message.getRedeliveryCount() > 0;
                Transaction x = world.begin();
                producer.newMessage(x).value(("to " + text(message)).getBytes()).send();
                acknowledge(consumer, message, x);
                if (commits) {
                    commit(x);
                    kept.add("to " + text(message));
                } else {
                    abort(x);
                }
            }
            equal(kept, texts(take(result, 40)), "each once, in the order of the commits");
            nothing(result);
            eventually(() -> world.backlog() == 0, "an empty backlog");
        }
    }
}
