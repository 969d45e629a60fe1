package interop;

import static interop.Check.*;

import java.time.Instant;
import java.time.LocalDate;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClientException.IncompatibleSchemaException;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.schema.GenericRecord;
import org.apache.pulsar.common.schema.KeyValue;
import org.apache.pulsar.common.schema.KeyValueEncodingType;
import org.apache.pulsar.common.schema.SchemaType;

/** Typed producers and consumers, and those that take the topic's schema. */
final class Schemas {
    private Schemas() {}

    /** A record; the client derives its Avro schema. */
    public static final class Order {
        public String item;
        public int count;

        static Order of(String item, int count) {
            Order order = new Order();
            order.item = item;
            order.count = count;
            return order;
        }

        @Override
        public boolean equals(Object other) {
            return other instanceof Order order && Objects.equals(item, order.item) && count == order.count;
        }

        @Override
        public int hashCode() {
            return Objects.hash(item, count);
        }

        @Override
        public String toString() {
            return item + " x " + count;
        }
    }

    static void list(Map<String, Main.Scenario> scenarios) {
        Order order = Order.of("apple", 3);
        scenarios.put("string schema", server -> typed(server, Schema.STRING, "text"));
        scenarios.put("integer schema", server -> typed(server, Schema.INT32, -7));
        scenarios.put("date schemas", server -> {
            typed(server, Schema.LOCAL_DATE, LocalDate.of(2026, 1, 2));
            typed(server, Schema.INSTANT, Instant.ofEpochSecond(7));
        });
        scenarios.put("JSON schema", server -> typed(server, Schema.JSON(Order.class), order));
        scenarios.put("Avro schema", server -> typed(server, Schema.AVRO(Order.class), order));
        for (var encoding : KeyValueEncodingType.values()) {
            scenarios.put("key/value schema " + encoding, server -> typed(server,
                    Schema.KeyValue(Schema.STRING, Schema.AVRO(Order.class), encoding), new KeyValue<>("k", order)));
        }
        scenarios.put("messages of several schemas", Schemas::several);
    }

    /** Through a topic of its own: typed, by AUTO_CONSUME, and as bytes checked by AUTO_PRODUCE_BYTES. */
    private static <V> void typed(Server server, Schema<V> schema, V value) throws Exception {
        String topic = server.topic();
        try (Consumer<V> consumer = server.client.newConsumer(schema).topic(topic).subscriptionName("s").subscribe();
                Producer<V> producer = server.client.newProducer(schema).topic(topic).create();
                Producer<byte[]> checked = server.client.newProducer(Schema.AUTO_PRODUCE_BYTES()).topic(topic).create();
                Consumer<GenericRecord> any = server.client.newConsumer(Schema.AUTO_CONSUME()).topic(topic)
                        .subscriptionName("any").subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                        .subscribe()) {
            producer.send(value);
            // A separate key isn't part of the bytes.
            boolean alsoBytes = schema.getSchemaInfo().getType() != SchemaType.KEY_VALUE;
            if (alsoBytes) {
                checked.send(schema.encode(value));
            }
            for (int n = 0; n < (alsoBytes ? 2 : 1); n++) {
                equal(value, consumer.receive(SECONDS_MAX, TimeUnit.SECONDS).getValue(), "typed value");
                Message<GenericRecord> generic = any.receive(SECONDS_MAX, TimeUnit.SECONDS);
                equal(schema.getSchemaInfo().getType(), generic.getValue().getSchemaType(), "type");
            }
            fails(IncompatibleSchemaException.class,
                    () -> server.client.newProducer(Schema.DOUBLE).topic(topic).create(), "producer of another type");
            fails(IncompatibleSchemaException.class, () -> server.client.newConsumer(Schema.DOUBLE).topic(topic)
                    .subscriptionName("other").subscribe(), "consumer of another type");
        }
    }

    /** One producer may send messages of schemas that it makes known on the way. */
    private static void several(Server server) throws Exception {
        String topic = server.topic();
        try (Consumer<byte[]> consumer = server.client.newConsumer().topic(topic).subscriptionName("s").subscribe();
                Producer<byte[]> producer = server.client.newProducer().topic(topic).create()) {
            producer.send(new byte[] {1});
            producer.newMessage(Schema.STRING).value("a").send();
            fails(IncompatibleSchemaException.class, () -> producer.newMessage(Schema.INT32).value(1).send(), "type");
            for (int n = 0; n < 2; n++) {
                that(consumer.receive(SECONDS_MAX, TimeUnit.SECONDS) != null, "message " + n);
            }
        }
    }
}
