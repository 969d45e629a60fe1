package interop;

import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.Callable;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;

/** Small assertions: a failed one throws an {@link AssertionError} that names both sides. */
final class Check {
    /** How long anything that should happen may take. */
    static final int SECONDS_MAX = 15;

    private Check() {}

    static void equal(Object expected, Object actual, String what) {
        if (!Objects.equals(expected, actual)) {
            throw new AssertionError(what + ": expected " + expected + ", got " + actual);
        }
    }

    static void that(boolean condition, String what) {
        if (!condition) {
            throw new AssertionError(what);
        }
    }

    /** Runs an action that must fail with an exception of the given class. */
    static void fails(Class<? extends Throwable> expected, Callable<?> action, String what) {
        try {
            action.call();
        } catch (Throwable error) {
            that(expected.isInstance(error), what + ": expected " + expected.getSimpleName() + ", got " + error);
            return;
        }
        throw new AssertionError(what + ": expected " + expected.getSimpleName() + ", nothing was thrown");
    }

    static void eventually(Callable<Boolean> condition, String what) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(SECONDS_MAX);
        while (!condition.call()) {
            that(System.nanoTime() < deadline, "not in time: " + what);
            Thread.sleep(20);
        }
    }

    static Message<byte[]> next(Consumer<byte[]> consumer) throws Exception {
        Message<byte[]> message = consumer.receive(SECONDS_MAX, TimeUnit.SECONDS);
        that(message != null, "no message on " + consumer.getTopic());
        return message;
    }

    static void nothing(Consumer<byte[]> consumer) throws Exception {
        Message<byte[]> message = consumer.receive(300, TimeUnit.MILLISECONDS);
        that(message == null, "unexpected message " + (message == null ? "" : text(message)));
    }

    static List<Message<byte[]>> take(Consumer<byte[]> consumer, int count) throws Exception {
        List<Message<byte[]>> messages = new ArrayList<>();
        while (messages.size() < count) {
            messages.add(next(consumer));
        }
        return messages;
    }

    static List<String> texts(Collection<Message<byte[]>> messages) {
        return messages.stream().map(Check::text).toList();
    }

    static String text(Message<byte[]> message) {
        return new String(message.getData());
    }

    /** Sends the numbers of a range as texts, all before the first receipt is awaited. */
    static List<MessageId> send(Producer<byte[]> producer, int first, int end) throws Exception {
        var sent = new ArrayList<java.util.concurrent.CompletableFuture<MessageId>>();
        for (int n = first; n < end; n++) {
            sent.add(producer.sendAsync(Integer.toString(n).getBytes()));
        }
        producer.flush();
        List<MessageId> ids = new ArrayList<>();
        for (var each : sent) {
            ids.add(each.get(SECONDS_MAX, TimeUnit.SECONDS));
        }
        return ids;
    }

    static List<String> numbers(int first, int end) {
        return java.util.stream.IntStream.range(first, end).mapToObj(Integer::toString).toList();
    }
}
