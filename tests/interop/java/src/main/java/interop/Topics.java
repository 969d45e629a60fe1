package interop;

import static interop.Check.*;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.HashingScheme;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.MessageRoutingMode;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.ReaderListener;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.TopicMessageId;

/** More than one topic: partitions, lists, patterns; and topics that end or move. */
final class Topics {
    private Topics() {}

    static void list(Map<String, Main.Scenario> scenarios) {
        scenarios.put("partitioned topic", Topics::partitioned);
        scenarios.put("partitions are added", Topics::growing);
        scenarios.put("several topics", Topics::several);
        scenarios.put("topics by pattern", Topics::pattern);
        scenarios.put("end of a terminated topic", Topics::terminated);
        scenarios.put("unload under load", Topics::unload);
        scenarios.put("deleted topic", Topics::deleted);
        scenarios.put("partitions for a topic", Topics::partitionNames);
    }

    private static void partitioned(Server server) throws Exception {
        String topic = server.partitioned(4);
        try (Consumer<byte[]> consumer = server.client.newConsumer().topic(topic).subscriptionName("s").subscribe();
                Producer<byte[]> producer = server.client.newProducer().topic(topic)
                        .hashingScheme(HashingScheme.Murmur3_32Hash).create();
                Producer<byte[]> single = server.client.newProducer().topic(topic)
                        .messageRoutingMode(MessageRoutingMode.SinglePartition).create()) {
            List<CompletableFuture<MessageId>> sent = new ArrayList<>();
            for (int n = 0; n < 200; n++) {
                sent.add(producer.newMessage().key("k" + n % 20).value(Integer.toString(n).getBytes()).sendAsync());
            }
            producer.flush();
            CompletableFuture.allOf(sent.toArray(CompletableFuture[]::new)).get(SECONDS_MAX, TimeUnit.SECONDS);
            List<Message<byte[]>> messages = take(consumer, 200);
            Map<String, Set<String>> partitionsOfKey = new java.util.HashMap<>();
            Map<String, Integer> lastOfKey = new java.util.HashMap<>();
            for (Message<byte[]> message : messages) {
                partitionsOfKey.computeIfAbsent(message.getKey(), key -> new HashSet<>()).add(message.getTopicName());
                Integer before = lastOfKey.put(message.getKey(), Integer.parseInt(text(message)));
                that(before == null || before < Integer.parseInt(text(message)), "order of key " + message.getKey());
            }
            that(partitionsOfKey.values().stream().allMatch(each -> each.size() == 1), "a key has one partition");
            equal(4, (int) messages.stream().map(Message::getTopicName).distinct().count(), "partitions in use");
            consumer.acknowledge(messages.stream().map(Message::getMessageId).toList());
            send(single, 0, 10);
            equal(1, (int) take(consumer, 10).stream().map(Message::getTopicName).distinct().count(), "single partition");
        }
    }

    private static void growing(Server server) throws Exception {
        String topic = server.partitioned(1);
        try (Consumer<byte[]> consumer = server.client.newConsumer().topic(topic).subscriptionName("s")
                        .autoUpdatePartitionsInterval(1, TimeUnit.SECONDS).subscribe();
                Producer<byte[]> producer = server.client.newProducer().topic(topic).enableBatching(false)
                        .autoUpdatePartitionsInterval(1, TimeUnit.SECONDS).create()) {
            server.admin("POST", topic, "/partitions", "3");
            Set<String> seen = new HashSet<>();
            eventually(() -> {
                send(producer, 0, 3);
                for (Message<byte[]> message : take(consumer, 3)) {
                    seen.add(message.getTopicName());
                }
                return seen.size() == 3;
            }, "messages from all three partitions");
        }
    }

    private static void several(Server server) throws Exception {
        List<String> topics = List.of(server.topic(), server.topic(), server.partitioned(2));
        try (Consumer<byte[]> consumer = server.client.newConsumer().topics(topics).subscriptionName("s")
                .subscriptionType(SubscriptionType.Shared).subscribe()) {
            for (String topic : topics) {
                try (Producer<byte[]> producer = server.client.newProducer().topic(topic).enableBatching(false).create()) {
                    send(producer, 0, 10);
                }
            }
            List<Message<byte[]>> messages = take(consumer, 30);
            equal(4, (int) messages.stream().map(Message::getTopicName).distinct().count(), "topics and partitions");
            messages.forEach(consumer::acknowledgeAsync);
            equal(4, consumer.getLastMessageIds().size(), "last ids");
            for (TopicMessageId id : consumer.getLastMessageIds()) {
                that(id.getOwnerTopic().startsWith("persistent://"), "topic of a last id");
            }
        }
    }

    private static void pattern(Server server) throws Exception {
        String prefix = "persistent://public/default/p" + UUID.randomUUID().toString().substring(0, 8) + "-";
        try (Producer<byte[]> one = server.client.newProducer().topic(prefix + "1").create();
                Consumer<byte[]> consumer = server.client.newConsumer().topicsPattern(Pattern.compile(prefix + "[0-9]+"))
                        .subscriptionName("s")
                        .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                        .patternAutoDiscoveryPeriod(1, TimeUnit.HOURS).subscribe()) {
            send(one, 0, 1);
            equal("0", text(next(consumer)), "known topic");
            // Polling is an hour away: only the watcher can tell of this one.
            try (Producer<byte[]> two = server.client.newProducer().topic(prefix + "2").create();
                    Producer<byte[]> other = server.client.newProducer().topic(prefix + "x").create()) {
                send(other, 7, 8);
                send(two, 1, 2);
                equal("1", text(next(consumer)), "new topic");
                nothing(consumer);
            }
        }
    }

    private static void terminated(Server server) throws Exception {
        String topic = server.topic();
        Consumer<byte[]> consumer = server.client.newConsumer().topic(topic).subscriptionName("s").subscribe();
        Producer<byte[]> producer = server.client.newProducer().topic(topic).create();
        CompletableFuture<Void> told = new CompletableFuture<>();
        server.client.newReader().topic(topic).startMessageId(MessageId.earliest)
                .readerListener(new ReaderListener<byte[]>() {
                    @Override
                    public void received(org.apache.pulsar.client.api.Reader<byte[]> reader, Message<byte[]> message) {}

                    @Override
                    public void reachedEndOfTopic(org.apache.pulsar.client.api.Reader<byte[]> reader) {
                        told.complete(null);
                    }
                }).create();
        send(producer, 0, 3);
        that(!consumer.hasReachedEndOfTopic(), "not yet");
        server.admin("POST", topic, "/terminate", "");
        fails(PulsarClientException.class, () -> producer.send("late".getBytes()), "send to a terminated topic");
        fails(PulsarClientException.TopicTerminatedException.class,
                () -> server.client.newProducer().topic(topic).create(), "producer on a terminated topic");
        consumer.acknowledgeCumulative(take(consumer, 3).get(2));
        eventually(consumer::hasReachedEndOfTopic, "end of the topic");
        told.get(SECONDS_MAX, TimeUnit.SECONDS);
    }

    private static void unload(Server server) throws Exception {
        String topic = server.topic();
        try (Consumer<byte[]> consumer = server.client.newConsumer().topic(topic).subscriptionName("s").subscribe();
                Producer<byte[]> producer = server.client.newProducer().topic(topic).blockIfQueueFull(true).create()) {
            List<CompletableFuture<MessageId>> sent = new ArrayList<>();
            for (int n = 0; n < 3000; n++) {
                sent.add(producer.sendAsync(Integer.toString(n).getBytes()));
                if (n % 1000 == 500) {
                    server.admin("PUT", topic, "/unload", "");
                }
            }
            CompletableFuture.allOf(sent.toArray(CompletableFuture[]::new)).get(2 * SECONDS_MAX, TimeUnit.SECONDS);
            Set<String> seen = new HashSet<>();
            while (seen.size() < 3000) {
                Message<byte[]> message = next(consumer);
                seen.add(text(message));
                consumer.acknowledge(message);
            }
        }
    }

    private static void deleted(Server server) throws Exception {
        String topic = server.topic();
        server.client.newProducer().topic(topic).create().close();
        server.admin("DELETE", topic, "", "");
        try (Producer<byte[]> producer = server.client.newProducer().topic(topic).create()) {
            producer.send("a new life".getBytes());
        }
    }

    private static void partitionNames(Server server) throws Exception {
        String topic = server.partitioned(3);
        equal(List.of(topic + "-partition-0", topic + "-partition-1", topic + "-partition-2"),
                server.client.getPartitionsForTopic(topic).get(SECONDS_MAX, TimeUnit.SECONDS), "names");
    }
}
