// Apache Pulsar's own client, for tests: java -cp JARS Transactions.java URL TOPIC WORD...
// WORD: plain | commit | abort | open, each sends two messages; commit-ack | abort-ack, each acknowledges one.
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.transaction.Transaction;

public class Transactions {
    public static void main(String[] words) throws Exception {
        PulsarClient client = PulsarClient.builder().serviceUrl(words[0]).enableTransaction(true).build();
        Producer<String> producer = client.newProducer(Schema.STRING).topic(words[1]).enableBatching(false).create();
        for (int number = 2; number < words.length; number++) {
            String word = words[number];
            Transaction transaction = word.equals("plain") ? null
                : client.newTransaction().withTransactionTimeout(1, TimeUnit.HOURS).build().get();
            if (word.endsWith("-ack")) {
                acknowledge(client, words[1], transaction);
            }
            for (int each = 0; each < 2 && !word.endsWith("-ack"); each++) {
                var message = transaction == null ? producer.newMessage() : producer.newMessage(transaction);
                message.value(word + " " + number + " " + each).send();
            }
            if (word.startsWith("commit")) {
                transaction.commit().get();
            } else if (word.startsWith("abort")) {
                transaction.abort().get();
            }
        }
        Runtime.getRuntime().halt(0); // what is open stays so
    }

    private static void acknowledge(PulsarClient client, String topic, Transaction transaction) throws Exception {
        Consumer<String> consumer = client.newConsumer(Schema.STRING).topic(topic).subscriptionName("acked")
            .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
        Message<String> message = consumer.receive();
        consumer.acknowledgeAsync(message.getMessageId(), transaction).get();
        consumer.close();
    }
}
