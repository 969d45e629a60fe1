package interop

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/crypto"
)

func TestBatches(t *testing.T) {
	client, topic := newClient(t), newTopic()
	consumer := newConsumer(t, client, pulsar.ConsumerOptions{Topic: topic})
	producer := newProducer(t, client, pulsar.ProducerOptions{
		Topic: topic, BatchingMaxMessages: 100, BatchingMaxPublishDelay: 20 * time.Millisecond,
	})
	send(t, producer, 0, 1000)
	equal(t, numbers(0, 1000), texts(take(t, consumer, 1000)), "order")
}

func TestMetadata(t *testing.T) {
	client, topic := newClient(t), newTopic()
	consumer := newConsumer(t, client, pulsar.ConsumerOptions{Topic: topic})
	producer := newProducer(t, client, pulsar.ProducerOptions{Topic: topic, Name: "named"})
	when := time.UnixMilli(1_700_000_000_123)
	_, err := producer.Send(context.Background(), &pulsar.ProducerMessage{
		Payload: []byte("v"), Key: "k", OrderingKey: "o", EventTime: when, Properties: map[string]string{"a": "ü"},
	})
	must(t, err)
	message := next(t, consumer)
	equal(t, "k", message.Key(), "key")
	equal(t, "o", message.OrderingKey(), "ordering key")
	equal(t, when.UnixMilli(), message.EventTime().UnixMilli(), "event time")
	equal(t, "ü", message.Properties()["a"], "property")
	equal(t, "named", message.ProducerName(), "producer")
}

func TestCompression(t *testing.T) {
	client, topic := newClient(t), newTopic()
	consumer := newConsumer(t, client, pulsar.ConsumerOptions{Topic: topic})
	payload := bytes.Repeat([]byte("compressed "), 100)
	for _, kind := range []pulsar.CompressionType{
		pulsar.NoCompression, pulsar.LZ4, pulsar.ZLib, pulsar.ZSTD, pulsar.SNAPPY,
	} {
		for _, single := range []bool{true, false} {
			producer := newProducer(t, client, pulsar.ProducerOptions{
				Topic: topic, CompressionType: kind, DisableBatching: single,
			})
			_, err := producer.Send(context.Background(), &pulsar.ProducerMessage{Payload: payload})
			must(t, err)
			equal(t, string(payload), string(next(t, consumer).Payload()), "payload")
		}
	}
}

func TestChunking(t *testing.T) {
	client, topic := newClient(t), newTopic()
	consumer := newConsumer(t, client, pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Shared})
	producer := newProducer(t, client, pulsar.ProducerOptions{
		Topic: topic, EnableChunking: true, DisableBatching: true, ChunkMaxMessageSize: 50_000,
	})
	large := make([]byte, 6_000_000)
	_, err := rand.Read(large)
	must(t, err)
	_, err = producer.Send(context.Background(), &pulsar.ProducerMessage{Payload: large})
	must(t, err)
	message := next(t, consumer)
	if !bytes.Equal(large, message.Payload()) {
		t.Fatal("the chunked payload came back changed")
	}
	must(t, consumer.Ack(message))
}

// keys holds RSA keys made for this run.
type keys struct{ public, private []byte }

func newKeys(t *testing.T) *keys {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	must(t, err)
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	must(t, err)
	private := x509.MarshalPKCS1PrivateKey(key) // the only form this client reads
	return &keys{
		pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}),
		pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: private}),
	}
}

func (k *keys) PublicKey(name string, metadata map[string]string) (*crypto.EncryptionKeyInfo, error) {
	return crypto.NewEncryptionKeyInfo(name, k.public, metadata), nil
}

func (k *keys) PrivateKey(name string, metadata map[string]string) (*crypto.EncryptionKeyInfo, error) {
	return crypto.NewEncryptionKeyInfo(name, k.private, metadata), nil
}

func TestEncryption(t *testing.T) {
	client, topic, keys := newClient(t), newTopic(), newKeys(t)
	consumer := newConsumer(t, client, pulsar.ConsumerOptions{
		Topic: topic, Decryption: &pulsar.MessageDecryptionInfo{KeyReader: keys},
	})
	producer := newProducer(t, client, pulsar.ProducerOptions{
		Topic: topic, CompressionType: pulsar.LZ4,
		Encryption: &pulsar.ProducerEncryptionInfo{KeyReader: keys, Keys: []string{"mine"}},
	})
	send(t, producer, 0, 20)
	equal(t, numbers(0, 20), texts(take(t, consumer, 20)), "decrypted")
}

func TestAccessModes(t *testing.T) {
	client, topic := newClient(t), newTopic()
	first, err := client.CreateProducer(pulsar.ProducerOptions{
		Topic: topic, ProducerAccessMode: pulsar.ProducerAccessModeExclusive,
	})
	must(t, err)
	if _, err := client.CreateProducer(pulsar.ProducerOptions{
		Topic: topic, ProducerAccessMode: pulsar.ProducerAccessModeExclusive,
	}); err == nil {
		t.Fatal("a second exclusive producer was accepted")
	}
	waiting := make(chan pulsar.Producer, 1)
	go func() {
		producer, err := client.CreateProducer(pulsar.ProducerOptions{
			Topic: topic, ProducerAccessMode: pulsar.ProducerAccessModeWaitForExclusive,
		})
		if err != nil {
			t.Error(err)
		}
		waiting <- producer
	}()
	select {
	case <-waiting:
		t.Fatal("it did not wait")
	case <-time.After(300 * time.Millisecond):
	}
	first.Close()
	select {
	case producer := <-waiting:
		send(t, producer, 0, 1)
		producer.Close()
	case <-time.After(patience):
		t.Fatal("it was not let in")
	}
}

func TestDelayedMessages(t *testing.T) {
	client, topic := newClient(t), newTopic()
	consumer := newConsumer(t, client, pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Shared})
	producer := newProducer(t, client, pulsar.ProducerOptions{Topic: topic})
	start := time.Now()
	_, err := producer.Send(context.Background(), &pulsar.ProducerMessage{
		Payload: []byte("late"), DeliverAfter: 3 * time.Second,
	})
	must(t, err)
	send(t, producer, 0, 1)
	equal(t, "0 late", texts(take(t, consumer, 2)), "order")
	// Pulsar may deliver up to one tick, a second, early; Magnetar does not.
	if took := time.Since(start); took < 2*time.Second || took > 6*time.Second {
		t.Fatalf("delay of %v", took)
	}
}

func TestTerminatedTopic(t *testing.T) {
	client, topic := newClient(t), newTopic()
	consumer := newConsumer(t, client, pulsar.ConsumerOptions{Topic: topic})
	producer := newProducer(t, client, pulsar.ProducerOptions{Topic: topic, SendTimeout: patience})
	send(t, producer, 0, 3)
	admin(t, "POST", topic, "/terminate", "")
	_, err := producer.Send(context.Background(), &pulsar.ProducerMessage{Payload: []byte("late")})
	if !errors.Is(err, pulsar.ErrTopicTerminated) && !errors.Is(err, pulsar.ErrProducerClosed) {
		t.Fatalf("send to a terminated topic: %v", err)
	}
	equal(t, numbers(0, 3), texts(take(t, consumer, 3)), "what was there before")
}

func TestUnloadUnderLoad(t *testing.T) {
	client, topic := newClient(t), newTopic()
	consumer := newConsumer(t, client, pulsar.ConsumerOptions{Topic: topic})
	producer := newProducer(t, client, pulsar.ProducerOptions{Topic: topic})
	seen := map[string]bool{}
	for part := range 3 {
		send(t, producer, 500*part, 500*part+500)
		admin(t, "PUT", topic, "/unload", "")
	}
	for len(seen) < 1500 {
		message := next(t, consumer)
		seen[string(message.Payload())] = true
		must(t, consumer.Ack(message))
	}
}
