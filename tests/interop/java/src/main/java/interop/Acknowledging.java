package interop;

import static interop.Check.*;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.SubscriptionType;

/** Acknowledgements of all kinds; each is checked by what a new consumer still gets. */
final class Acknowledging {
    private Acknowledging() {}

    static void list(Map<String, Main.Scenario> scenarios) {
        scenarios.put("ack receipts", Acknowledging::receipts);
        scenarios.put("ack receipts, asynchronous", Acknowledging::asynchronous);
        scenarios.put("cumulative acks", Acknowledging::cumulative);
        scenarios.put("cumulative acks in a batch", Acknowledging::cumulativeInBatch);
        scenarios.put("batch index acks", Acknowledging::batchIndex);
        scenarios.put("acks of a list of ids", Acknowledging::ids);
        scenarios.put("grouped acks", Acknowledging::grouped);
    }

    private static Consumer<byte[]> subscribe(Server server, String topic, SubscriptionType type) throws Exception {
        return server.client.newConsumer().topic(topic).subscriptionName("s").subscriptionType(type)
                .isAckReceiptEnabled(true).enableBatchIndexAcknowledgment(true)
                .acknowledgmentGroupTime(0, TimeUnit.MILLISECONDS).subscribe();
    }

    private static Producer<byte[]> produce(Server server, String topic, boolean batching) throws Exception {
        return server.client.newProducer().topic(topic).enableBatching(batching).batchingMaxMessages(10)
                .batchingMaxPublishDelay(1, TimeUnit.SECONDS).create();
    }

    private static void receipts(Server server) throws Exception {
        String topic = server.topic();
        try (Producer<byte[]> producer = produce(server, topic, false)) {
            try (Consumer<byte[]> consumer = subscribe(server, topic, SubscriptionType.Shared)) {
                send(producer, 0, 10);
                for (Message<byte[]> message : take(consumer, 10)) {
                    if (Integer.parseInt(text(message)) % 2 == 0) {
                        consumer.acknowledge(message);
                    }
                }
            }
            try (Consumer<byte[]> consumer = subscribe(server, topic, SubscriptionType.Shared)) {
                equal(List.of("1", "3", "5", "7", "9"), texts(take(consumer, 5)), "unacknowledged");
                nothing(consumer);
            }
        }
    }

    private static void asynchronous(Server server) throws Exception {
        String topic = server.topic();
        try (Producer<byte[]> producer = produce(server, topic, true);
                Consumer<byte[]> consumer = subscribe(server, topic, SubscriptionType.Shared)) {
            send(producer, 0, 500);
            List<CompletableFuture<Void>> acks = new ArrayList<>();
            for (Message<byte[]> message : take(consumer, 500)) {
                acks.add(consumer.acknowledgeAsync(message));
            }
            CompletableFuture.allOf(acks.toArray(CompletableFuture[]::new)).get(SECONDS_MAX, TimeUnit.SECONDS);
            that(server.admin("GET", topic, "/stats", "").contains("\"msgBacklog\":0"), "no backlog");
        }
    }

    private static void cumulative(Server server) throws Exception {
        String topic = server.topic();
        try (Producer<byte[]> producer = produce(server, topic, false)) {
            try (Consumer<byte[]> consumer = subscribe(server, topic, SubscriptionType.Exclusive)) {
                send(producer, 0, 10);
                consumer.acknowledgeCumulative(take(consumer, 10).get(6));
            }
            try (Consumer<byte[]> consumer = subscribe(server, topic, SubscriptionType.Failover)) {
                equal(numbers(7, 10), texts(take(consumer, 3)), "behind the acknowledged one");
            }
        }
    }

    private static void cumulativeInBatch(Server server) throws Exception {
        String topic = server.topic();
        try (Producer<byte[]> producer = produce(server, topic, true)) {
            Consumer<byte[]> consumer = subscribe(server, topic, SubscriptionType.Exclusive);
            send(producer, 0, 20);
            List<Message<byte[]>> messages = take(consumer, 20);
            consumer.acknowledgeCumulative(messages.get(9));
            consumer.close();
            try (Consumer<byte[]> second = subscribe(server, topic, SubscriptionType.Exclusive)) {
                equal(numbers(10, 20), texts(take(second, 10)), "the second batch");
            }
        }
    }

    private static void batchIndex(Server server) throws Exception {
        String topic = server.topic();
        try (Producer<byte[]> producer = produce(server, topic, true)) {
            try (Consumer<byte[]> consumer = subscribe(server, topic, SubscriptionType.Shared)) {
                send(producer, 0, 10);
                List<Message<byte[]>> messages = take(consumer, 10);
                for (int n = 0; n < 10; n += 3) {
                    consumer.acknowledge(messages.get(n));
                }
            }
            try (Consumer<byte[]> consumer = subscribe(server, topic, SubscriptionType.Shared)) {
                List<Message<byte[]>> left = take(consumer, 6);
                equal(List.of("1", "2", "4", "5", "7", "8"), texts(left), "unacknowledged indexes");
                for (Message<byte[]> message : left) {
                    consumer.acknowledge(message);
                }
            }
            try (Consumer<byte[]> consumer = subscribe(server, topic, SubscriptionType.Shared)) {
                nothing(consumer);
            }
        }
    }

    private static void ids(Server server) throws Exception {
        String topic = server.topic();
        try (Producer<byte[]> producer = produce(server, topic, true)) {
            try (Consumer<byte[]> consumer = subscribe(server, topic, SubscriptionType.Shared)) {
                send(producer, 0, 30);
                List<MessageId> ids = take(consumer, 30).stream().map(Message::getMessageId).toList();
                consumer.acknowledge(ids.subList(0, 29));
            }
            try (Consumer<byte[]> consumer = subscribe(server, topic, SubscriptionType.Shared)) {
                equal(List.of("29"), texts(take(consumer, 1)), "the one not in the list");
                nothing(consumer);
            }
        }
    }

    private static void grouped(Server server) throws Exception {
        String topic = server.topic();
        try (Producer<byte[]> producer = produce(server, topic, true)) {
            try (Consumer<byte[]> consumer = server.client.newConsumer().topic(topic).subscriptionName("s")
                    .acknowledgmentGroupTime(50, TimeUnit.MILLISECONDS).subscribe()) {
                send(producer, 0, 100);
                for (Message<byte[]> message : take(consumer, 100)) {
                    consumer.acknowledge(message);
                }
                eventually(() -> server.admin("GET", topic, "/stats", "").contains("\"msgBacklog\":0"), "no backlog");
            }
        }
    }
}
