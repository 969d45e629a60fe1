package interop;

import static interop.Check.*;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.BatchReceivePolicy;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerEventListener;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Messages;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionMode;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.impl.MultiplierRedeliveryBackoff;

/** Subscription types, redelivery, dead and retry letters, the life of a subscription. */
final class Consuming {
    private Consuming() {}

    static void list(Map<String, Main.Scenario> scenarios) {
        scenarios.put("exclusive subscription", Consuming::exclusive);
        scenarios.put("shared subscription", Consuming::shared);
        scenarios.put("failover with active changes", Consuming::failover);
        scenarios.put("priority levels", Consuming::priority);
        scenarios.put("negative acks and backoff", Consuming::negativeAcks);
        scenarios.put("ack timeout", Consuming::ackTimeout);
        scenarios.put("dead letters", Consuming::deadLetters);
        scenarios.put("retry letters", Consuming::retryLetters);
        scenarios.put("batch receive, pause, resume", Consuming::batchReceive);
        scenarios.put("zero queue", Consuming::zeroQueue);
        scenarios.put("initial position", Consuming::initialPosition);
        scenarios.put("unsubscribe", Consuming::unsubscribe);
        scenarios.put("non-durable subscription", Consuming::nonDurable);
        scenarios.put("consumer statistics", Consuming::statistics);
    }

    private static void exclusive(Server server) throws Exception {
        String topic = server.topic();
        var builder = server.client.newConsumer().topic(topic).subscriptionName("s");
        try (Consumer<byte[]> first = builder.subscribe()) {
            fails(PulsarClientException.ConsumerBusyException.class, builder::subscribe, "second exclusive consumer");
            fails(PulsarClientException.ConsumerBusyException.class,
                    () -> builder.clone().subscriptionType(SubscriptionType.Shared).subscribe(), "another type");
            that(first.isConnected(), "the first one stays");
        }
        builder.clone().subscriptionType(SubscriptionType.Shared).subscribe().close();
    }

    private static void shared(Server server) throws Exception {
        String topic = server.topic();
        var builder = server.client.newConsumer().topic(topic).subscriptionName("s")
                .subscriptionType(SubscriptionType.Shared).receiverQueueSize(10);
        Consumer<byte[]> one = builder.subscribe();
        try (Consumer<byte[]> two = builder.subscribe();
                Producer<byte[]> producer = server.client.newProducer().topic(topic).enableBatching(false).create()) {
            send(producer, 0, 20);
            List<String> ofOne = texts(take(one, 10));
            List<String> ofTwo = texts(take(two, 10));
            Set<String> all = new HashSet<>(ofOne);
            all.addAll(ofTwo);
            equal(20, all.size(), "distinct messages");
            one.close();
            equal(new HashSet<>(ofOne), new HashSet<>(texts(take(two, 10))), "what the closed one had");
        }
    }

    private static void failover(Server server) throws Exception {
        // Of a partition the first name is active; elsewhere a hash of the topic's name decides.
        String topic = server.partitioned(1) + "-partition-0";
        var events = new ConcurrentLinkedQueue<String>();
        Consumer<byte[]> a = failoverConsumer(server, topic, "a", events);
        try (Consumer<byte[]> b = failoverConsumer(server, topic, "b", events);
                Producer<byte[]> producer = server.client.newProducer().topic(topic).create()) {
            eventually(() -> events.contains("a active") && events.contains("b inactive"), "roles of a and b");
            send(producer, 0, 10);
            List<Message<byte[]>> messages = take(a, 10);
            a.acknowledge(messages.get(0));
            nothing(b);
            a.close();
            eventually(() -> events.contains("b active"), "b takes over");
            equal(numbers(1, 10), texts(take(b, 9)), "what a had not acknowledged");
        }
    }

    private static Consumer<byte[]> failoverConsumer(
            Server server, String topic, String name, ConcurrentLinkedQueue<String> events) throws Exception {
        var listener = new ConsumerEventListener() {
            @Override
            public void becameActive(Consumer<?> consumer, int partition) {
                events.add(name + " active");
            }

            @Override
            public void becameInactive(Consumer<?> consumer, int partition) {
                events.add(name + " inactive");
            }
        };
        return server.client.newConsumer().topic(topic).subscriptionName("s").consumerName(name)
                .subscriptionType(SubscriptionType.Failover).consumerEventListener(listener)
                .acknowledgmentGroupTime(0, TimeUnit.MILLISECONDS).subscribe();
    }

    private static void priority(Server server) throws Exception {
        String topic = server.topic();
        var builder = server.client.newConsumer().topic(topic).subscriptionName("s").receiverQueueSize(5)
                .subscriptionType(SubscriptionType.Shared);
        try (Consumer<byte[]> low = builder.clone().priorityLevel(1).subscribe();
                Consumer<byte[]> high = builder.clone().priorityLevel(0).subscribe();
                Producer<byte[]> producer = server.client.newProducer().topic(topic).enableBatching(false).create()) {
            send(producer, 0, 7);
            equal(5, take(high, 5).size(), "the higher level fills first");
            equal(2, take(low, 2).size(), "the rest goes to the lower one");
        }
    }

    private static void negativeAcks(Server server) throws Exception {
        String topic = server.topic();
        try (Consumer<byte[]> consumer = server.client.newConsumer().topic(topic).subscriptionName("s")
                        .subscriptionType(SubscriptionType.Shared)
                        .negativeAckRedeliveryBackoff(MultiplierRedeliveryBackoff.builder().minDelayMs(200)
                                .maxDelayMs(1000).multiplier(2).build()).subscribe();
                Producer<byte[]> producer = server.client.newProducer().topic(topic).create()) {
            send(producer, 0, 1);
            for (int count = 0; count < 4; count++) {
                Message<byte[]> message = next(consumer);
                equal(count, message.getRedeliveryCount(), "redelivery count");
                consumer.negativeAcknowledge(message);
            }
            consumer.acknowledge(next(consumer));
        }
    }

    private static void ackTimeout(Server server) throws Exception {
        String topic = server.topic();
        try (Consumer<byte[]> consumer = server.client.newConsumer().topic(topic).subscriptionName("s")
                        .subscriptionType(SubscriptionType.Shared).ackTimeout(1, TimeUnit.SECONDS)
                        .ackTimeoutTickTime(100, TimeUnit.MILLISECONDS).subscribe();
                Producer<byte[]> producer = server.client.newProducer().topic(topic).create()) {
            send(producer, 0, 5);
            take(consumer, 5);
            List<Message<byte[]>> again = take(consumer, 5);
            equal(new HashSet<>(numbers(0, 5)), new HashSet<>(texts(again)), "redelivered");
            consumer.redeliverUnacknowledgedMessages();
            consumer.acknowledge(take(consumer, 5).stream().map(Message::getMessageId).toList());
        }
    }

    private static void deadLetters(Server server) throws Exception {
        String topic = server.topic();
        String letters = topic + "-letters";
        var policy = DeadLetterPolicy.builder().maxRedeliverCount(2).deadLetterTopic(letters)
                .initialSubscriptionName("readers").build();
        try (Consumer<byte[]> consumer = server.client.newConsumer().topic(topic).subscriptionName("s")
                        .subscriptionType(SubscriptionType.Shared).negativeAckRedeliveryDelay(100, TimeUnit.MILLISECONDS)
                        .deadLetterPolicy(policy).subscribe();
                Producer<byte[]> producer = server.client.newProducer().topic(topic).create()) {
            send(producer, 0, 10);
            for (int n = 0; n < 30; n++) {
                consumer.negativeAcknowledge(next(consumer));
            }
            nothing(consumer);
            try (Consumer<byte[]> dead = server.client.newConsumer().topic(letters).subscriptionName("readers").subscribe()) {
                List<Message<byte[]>> messages = take(dead, 10);
                equal(new HashSet<>(numbers(0, 10)), new HashSet<>(texts(messages)), "dead letters");
                equal(topic, messages.get(0).getProperty("REAL_TOPIC"), "origin");
            }
        }
    }

    private static void retryLetters(Server server) throws Exception {
        String topic = server.topic();
        var policy = DeadLetterPolicy.builder().maxRedeliverCount(2).retryLetterTopic(topic + "-s-RETRY")
                .deadLetterTopic(topic + "-s-DLQ").build();
        try (Consumer<byte[]> dead = server.client.newConsumer().topic(topic + "-s-DLQ").subscriptionName("d").subscribe();
                Consumer<byte[]> consumer = server.client.newConsumer().topic(topic).subscriptionName("s")
                        .subscriptionType(SubscriptionType.Shared).enableRetry(true).deadLetterPolicy(policy).subscribe();
                Producer<byte[]> producer = server.client.newProducer().topic(topic).create()) {
            send(producer, 0, 4);
            for (int n = 0; n < 12; n++) {
                Message<byte[]> message = next(consumer);
                consumer.reconsumeLater(message, 200, TimeUnit.MILLISECONDS);
            }
            equal(new HashSet<>(numbers(0, 4)), new HashSet<>(texts(take(dead, 4))), "dead after two retries");
            nothing(consumer);
        }
    }

    private static void batchReceive(Server server) throws Exception {
        String topic = server.topic();
        try (Consumer<byte[]> consumer = server.client.newConsumer().topic(topic).subscriptionName("s").receiverQueueSize(10)
                        .batchReceivePolicy(BatchReceivePolicy.builder().maxNumMessages(7)
                                .timeout(200, TimeUnit.MILLISECONDS).build()).subscribe();
                Producer<byte[]> producer = server.client.newProducer().topic(topic).create()) {
            send(producer, 0, 40);
            List<String> got = new ArrayList<>();
            while (got.size() < 40) {
                Messages<byte[]> messages = consumer.batchReceive();
                that(messages.size() <= 7, "at most 7");
                messages.forEach(message -> got.add(text(message)));
                consumer.acknowledge(messages);
                if (got.size() == 14) {
                    consumer.pause();
                    Thread.sleep(100);
                    consumer.resume();
                }
            }
            equal(numbers(0, 40), got, "order");
        }
    }

    private static void zeroQueue(Server server) throws Exception {
        String topic = server.topic();
        try (Consumer<byte[]> consumer = server.client.newConsumer().topic(topic).subscriptionName("s")
                        .receiverQueueSize(0).subscribe();
                Producer<byte[]> producer = server.client.newProducer().topic(topic).enableBatching(false).create()) {
            send(producer, 0, 5);
            for (int n = 0; n < 5; n++) {
                equal(Integer.toString(n), text(consumer.receive()), "one by one");
            }
        }
    }

    private static void initialPosition(Server server) throws Exception {
        String topic = server.topic();
        try (Consumer<byte[]> keeper = server.client.newConsumer().topic(topic).subscriptionName("keeper").subscribe();
                Producer<byte[]> producer = server.client.newProducer().topic(topic).create()) {
            send(producer, 0, 5);
            try (Consumer<byte[]> early = server.client.newConsumer().topic(topic).subscriptionName("early")
                            .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
                    Consumer<byte[]> late = server.client.newConsumer().topic(topic).subscriptionName("late").subscribe()) {
                send(producer, 5, 6);
                equal(numbers(0, 6), texts(take(early, 6)), "earliest");
                equal(numbers(5, 6), texts(take(late, 1)), "latest");
                equal(numbers(0, 6), texts(take(keeper, 6)), "keeper");
            }
        }
    }

    private static void unsubscribe(Server server) throws Exception {
        String topic = server.topic();
        Consumer<byte[]> consumer = server.client.newConsumer().topic(topic).subscriptionName("s").subscribe();
        Consumer<byte[]> one = server.client.newConsumer().topic(topic).subscriptionName("two")
                .subscriptionType(SubscriptionType.Shared).subscribe();
        Consumer<byte[]> two = server.client.newConsumer().topic(topic).subscriptionName("two")
                .subscriptionType(SubscriptionType.Shared).subscribe();
        consumer.unsubscribe();
        that(!server.admin("GET", topic, "/subscriptions", "").contains("\"s\""), "gone");
        fails(PulsarClientException.class, () -> {
            one.unsubscribe();
            return null;
        }, "unsubscribe beside another consumer");
        one.unsubscribe(true);
        equal("[]", server.admin("GET", topic, "/subscriptions", ""), "all gone");
    }

    private static void nonDurable(Server server) throws Exception {
        String topic = server.topic();
        Consumer<byte[]> consumer = server.client.newConsumer().topic(topic).subscriptionName("s")
                .subscriptionMode(SubscriptionMode.NonDurable).subscribe();
        try (Producer<byte[]> producer = server.client.newProducer().topic(topic).create()) {
            send(producer, 0, 3);
            equal(numbers(0, 3), texts(take(consumer, 3)), "messages");
            consumer.close();
            eventually(() -> server.admin("GET", topic, "/subscriptions", "").equals("[]"), "nothing is left");
        }
    }

    private static void statistics(Server server) throws Exception {
        String topic = server.topic();
        try (Consumer<byte[]> consumer = server.client.newConsumer().topic(topic).subscriptionName("s")
                        .consumerName("mine").property("team", "a").subscribe();
                Producer<byte[]> producer = server.client.newProducer().topic(topic).create()) {
            send(producer, 0, 3);
            take(consumer, 3);
            String stats = server.admin("GET", topic, "/stats", "");
            that(stats.contains("\"consumerName\":\"mine\""), "consumer: " + stats);
            that(stats.contains("\"team\":\"a\""), "metadata: " + stats);
            that(stats.contains("Pulsar-Java"), "client version: " + stats);
        }
    }
}
