package interop

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

func TestExclusiveSubscription(t *testing.T) {
	client, topic := newClient(t), newTopic()
	newConsumer(t, client, pulsar.ConsumerOptions{Topic: topic})
	if _, err := client.Subscribe(pulsar.ConsumerOptions{Topic: topic, SubscriptionName: "s"}); err == nil {
		t.Fatal("a second exclusive consumer was accepted")
	}
}

func TestKeyShared(t *testing.T) {
	client, topic := newClient(t), newTopic()
	options := pulsar.ConsumerOptions{Topic: topic, Type: pulsar.KeyShared}
	consumers := []pulsar.Consumer{newConsumer(t, client, options), newConsumer(t, client, options)}
	producer := newProducer(t, client, pulsar.ProducerOptions{
		Topic: topic, BatcherBuilderType: pulsar.KeyBasedBatchBuilder,
	})
	for n := range 300 {
		producer.SendAsync(context.Background(), &pulsar.ProducerMessage{
			Payload: []byte{1}, Key: fmt.Sprint("k", n%30),
		}, func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
			if err != nil {
				t.Error(err)
			}
		})
	}
	must(t, producer.Flush())
	owner, count := map[string]int{}, [2]int{}
	for range 300 {
		var message pulsar.ConsumerMessage
		select {
		case message = <-consumers[0].Chan():
		case message = <-consumers[1].Chan():
		case <-time.After(patience):
			t.Fatalf("messages are missing after %v", count)
		}
		of := 0
		if message.Consumer == consumers[1] {
			of = 1
		}
		if before, known := owner[message.Key()]; known && before != of {
			t.Fatalf("key %s went to both consumers", message.Key())
		}
		owner[message.Key()] = of
		count[of]++
		must(t, message.Consumer.Ack(message))
	}
	if count[0] == 0 || count[1] == 0 {
		t.Fatalf("30 keys went to one consumer: %v", count)
	}
}

func TestFailover(t *testing.T) {
	client := newClient(t)
	// Of a partition the first name is active; elsewhere a hash of the topic's name decides.
	topic := newPartitionedTopic(t, 1) + "-partition-0"
	options := pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Failover, Name: "a", AckWithResponse: true}
	a, err := client.Subscribe(withSubscription(options))
	must(t, err)
	options.Name = "b"
	b := newConsumer(t, client, options)
	producer := newProducer(t, client, pulsar.ProducerOptions{Topic: topic, DisableBatching: true})
	send(t, producer, 0, 10)
	messages := take(t, a, 10)
	must(t, a.Ack(messages[0]))
	nothing(t, b)
	a.Close()
	equal(t, numbers(1, 10), texts(take(t, b, 9)), "what a had not acknowledged")
}

func withSubscription(options pulsar.ConsumerOptions) pulsar.ConsumerOptions {
	options.SubscriptionName = "s"
	return options
}

func TestBatchIndexAcks(t *testing.T) {
	client, topic := newClient(t), newTopic()
	options := pulsar.ConsumerOptions{
		Topic: topic, Type: pulsar.Shared, AckWithResponse: true, EnableBatchIndexAcknowledgment: true,
	}
	consumer, err := client.Subscribe(withSubscription(options))
	must(t, err)
	producer := newProducer(t, client, pulsar.ProducerOptions{
		Topic: topic, BatchingMaxMessages: 10, BatchingMaxPublishDelay: time.Second,
	})
	send(t, producer, 0, 10)
	for n, message := range take(t, consumer, 10) {
		if n%2 == 0 {
			must(t, consumer.Ack(message))
		}
	}
	consumer.Close()
	again := newConsumer(t, client, options)
	equal(t, "1 3 5 7 9", texts(take(t, again, 5)), "unacknowledged indexes")
	nothing(t, again)
}

func TestCumulativeAcks(t *testing.T) {
	client, topic := newClient(t), newTopic()
	options := pulsar.ConsumerOptions{Topic: topic, AckWithResponse: true}
	consumer, err := client.Subscribe(withSubscription(options))
	must(t, err)
	producer := newProducer(t, client, pulsar.ProducerOptions{Topic: topic, DisableBatching: true})
	send(t, producer, 0, 10)
	must(t, consumer.AckCumulative(take(t, consumer, 10)[6]))
	consumer.Close()
	equal(t, numbers(7, 10), texts(take(t, newConsumer(t, client, options), 3)), "behind the acknowledged one")
}

func TestNegativeAcksAndDeadLetters(t *testing.T) {
	client, topic := newClient(t), newTopic()
	letters := newConsumer(t, client, pulsar.ConsumerOptions{Topic: topic + "-letters"})
	consumer := newConsumer(t, client, pulsar.ConsumerOptions{
		Topic: topic, Type: pulsar.Shared, NackRedeliveryDelay: 100 * time.Millisecond,
		DLQ: &pulsar.DLQPolicy{MaxDeliveries: 3, DeadLetterTopic: topic + "-letters"},
	})
	producer := newProducer(t, client, pulsar.ProducerOptions{Topic: topic})
	send(t, producer, 0, 5)
	for n := range 15 {
		message := next(t, consumer)
		equal(t, uint32(n/5), message.RedeliveryCount(), "redelivery count")
		consumer.Nack(message)
	}
	nothing(t, consumer)
	take(t, letters, 5)
}

func TestRetryLetters(t *testing.T) {
	client, topic := newClient(t), newTopic()
	dead := newConsumer(t, client, pulsar.ConsumerOptions{Topic: topic + "-s-DLQ"})
	consumer := newConsumer(t, client, pulsar.ConsumerOptions{
		Topic: topic, Type: pulsar.Shared, RetryEnable: true,
		DLQ: &pulsar.DLQPolicy{
			MaxDeliveries: 2, DeadLetterTopic: topic + "-s-DLQ", RetryLetterTopic: topic + "-s-RETRY",
		},
	})
	producer := newProducer(t, client, pulsar.ProducerOptions{Topic: topic})
	send(t, producer, 0, 2)
	for range 6 {
		consumer.ReconsumeLater(next(t, consumer), 200*time.Millisecond)
	}
	take(t, dead, 2)
	nothing(t, consumer)
}

func TestSeek(t *testing.T) {
	client, topic := newClient(t), newTopic()
	consumer := newConsumer(t, client, pulsar.ConsumerOptions{Topic: topic, StartMessageIDInclusive: true})
	producer := newProducer(t, client, pulsar.ProducerOptions{Topic: topic, DisableBatching: true})
	ids := send(t, producer, 0, 10)
	must(t, consumer.AckCumulative(take(t, consumer, 10)[9]))
	must(t, consumer.Seek(ids[6]))
	equal(t, numbers(6, 10), texts(take(t, consumer, 4)), "from the id")
	time.Sleep(50 * time.Millisecond)
	now := time.Now()
	send(t, producer, 10, 12)
	take(t, consumer, 2)
	must(t, consumer.SeekByTime(now))
	equal(t, numbers(10, 12), texts(take(t, consumer, 2)), "from the time")
}

func TestUnsubscribe(t *testing.T) {
	client, topic := newClient(t), newTopic()
	consumer := newConsumer(t, client, pulsar.ConsumerOptions{Topic: topic})
	must(t, consumer.Unsubscribe())
	equal(t, "[]", admin(t, http.MethodGet, topic, "/subscriptions", ""), "subscriptions")
}

func TestPartitions(t *testing.T) {
	client, topic := newClient(t), newPartitionedTopic(t, 3)
	consumer := newConsumer(t, client, pulsar.ConsumerOptions{Topic: topic})
	producer := newProducer(t, client, pulsar.ProducerOptions{
		Topic: topic, DisableBatching: true, MessageRouter: func(message *pulsar.ProducerMessage, _ pulsar.TopicMetadata) int {
			return int(message.Payload[0]-'0') % 3
		},
	})
	send(t, producer, 0, 9)
	seen := map[string]int{}
	for _, message := range take(t, consumer, 9) {
		seen[message.Topic()]++
	}
	equal(t, 3, len(seen), "partitions")
	ids, err := consumer.GetLastMessageIDs()
	must(t, err)
	equal(t, 3, len(ids), "last ids")
	names, err := client.TopicPartitions(topic)
	must(t, err)
	equal(t, topic+"-partition-2", names[2], "name of a partition")
}

func TestTopicsByPattern(t *testing.T) {
	client := newClient(t)
	prefix := fmt.Sprintf("persistent://public/default/g%d-", time.Now().UnixNano()%1_000_000_000)
	one := newProducer(t, client, pulsar.ProducerOptions{Topic: prefix + "1"})
	consumer := newConsumer(t, client, pulsar.ConsumerOptions{
		TopicsPattern: regexp.QuoteMeta(prefix) + "[0-9]+", AutoDiscoveryPeriod: 500 * time.Millisecond,
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
	})
	send(t, one, 0, 1)
	equal(t, "0", string(next(t, consumer).Payload()), "known topic")
	two := newProducer(t, client, pulsar.ProducerOptions{Topic: prefix + "2"})
	send(t, two, 1, 2)
	message := next(t, consumer)
	equal(t, "1", string(message.Payload()), "new topic")
	if !strings.HasSuffix(message.Topic(), "-2") {
		t.Fatalf("topic %s", message.Topic())
	}
}
