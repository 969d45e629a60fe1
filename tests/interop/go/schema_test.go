package interop

import (
	"context"
	"testing"

	"github.com/apache/pulsar-client-go/pulsar"
)

type order struct {
	Item  string `json:"item" avro:"item"`
	Count int32  `json:"count" avro:"count"`
}

const orderDefinition = `{"type":"record","name":"Order","fields":[{"name":"item","type":"string"},{"name":"count","type":"int"}]}`

// decoded is the value of a message, read into a fresh V.
func decoded[V any](message pulsar.Message) (V, error) {
	var value V
	err := message.GetSchemaValue(&value)
	return value, err
}

// typed sends a value through a topic with a schema; a producer of another schema is refused.
func typed(t *testing.T, schema pulsar.Schema, value any) pulsar.Message {
	t.Helper()
	client, topic := newClient(t), newTopic()
	consumer := newConsumer(t, client, pulsar.ConsumerOptions{Topic: topic, Schema: schema})
	producer := newProducer(t, client, pulsar.ProducerOptions{Topic: topic, Schema: schema})
	_, err := producer.Send(context.Background(), &pulsar.ProducerMessage{Value: value})
	must(t, err)
	_, err = client.CreateProducer(pulsar.ProducerOptions{Topic: topic, Schema: pulsar.NewDoubleSchema(nil)})
	if err == nil {
		t.Fatal("a producer with another schema was accepted")
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	message, err := consumer.Receive(ctx)
	must(t, err)
	if len(message.SchemaVersion()) != 8 {
		t.Fatalf("schema version %v", message.SchemaVersion())
	}
	return message
}

func TestStringSchema(t *testing.T) {
	value, err := decoded[*string](typed(t, pulsar.NewStringSchema(nil), "hi"))
	must(t, err)
	if *value != "hi" {
		t.Fatal(*value)
	}
}

func TestIntegerSchema(t *testing.T) {
	value, err := decoded[int32](typed(t, pulsar.NewInt32Schema(nil), int32(-7)))
	must(t, err)
	if value != -7 {
		t.Fatal(value)
	}
}

func TestRecordSchemas(t *testing.T) {
	for _, schema := range []pulsar.Schema{
		pulsar.NewJSONSchema(orderDefinition, nil), pulsar.NewAvroSchema(orderDefinition, nil),
	} {
		value, err := decoded[order](typed(t, schema, &order{"a", 3}))
		must(t, err)
		if value != (order{"a", 3}) {
			t.Fatal(value)
		}
	}
}
