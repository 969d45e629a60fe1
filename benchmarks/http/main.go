// Loads on the HTTP port of Magnetar or Apache Pulsar: WebSocket and REST.
//
//	go run . -web http://127.0.0.1:8080 -load websocket-produce -seconds 8
//
// Loads: websocket-produce, websocket-pipe (produce, consume and acknowledge), rest-produce.
// Writes "measuring" when the warm-up is over, and one JSON object at the end.
package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorilla/websocket"
)

var (
	web         = flag.String("web", "http://127.0.0.1:8080", "URL of the HTTP port")
	load        = flag.String("load", "websocket-produce", "which load")
	seconds     = flag.Float64("seconds", 8, "of measuring")
	warmUp      = flag.Float64("warm-up", 2, "seconds in front of it")
	connections = flag.Int("connections", 2, "that produce")
	window      = flag.Int("window", 200, "messages without an answer on a WebSocket")
	size        = flag.Int("size", 100, "bytes of a message")
	batch       = flag.Int("batch", 1, "messages of a REST call")
)

// What is counted between "measuring" and the end.
var (
	isMeasuring, isOver atomic.Bool
	done                atomic.Int64
	failed              atomic.Int64
	mutex               sync.Mutex
	times               []time.Duration
)

const perTime = 7 // messages; the time of one of them is kept

var topic = fmt.Sprintf("persistent/public/default/http-load-%d", time.Now().UnixNano())

func count(messages int64, began time.Time) {
	if !isMeasuring.Load() {
		return
	}
	if n := done.Add(messages); n%perTime == 0 && !began.IsZero() {
		took := time.Since(began)
		mutex.Lock()
		times = append(times, took)
		mutex.Unlock()
	}
}

func dial(path string) *websocket.Conn {
	url := "ws" + strings.TrimPrefix(*web, "http") + "/ws/v2/" + path
	connection, response, err := websocket.DefaultDialer.Dial(url, nil)
	if err != nil {
		if response != nil {
			text, _ := io.ReadAll(response.Body)
			log.Fatalf("%s: %v: %s %s", url, err, response.Status, text)
		}
		log.Fatalf("%s: %v", url, err)
	}
	return connection
}

func payload() string {
	return base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("x"), *size))
}

// As fast as answers come, with `window` messages under way. Answers have the order of messages.
func websocketProduce() {
	connection := dial("producer/" + topic)
	began := make(chan time.Time, *window)
	go func() {
		text := payload()
		for n := 0; !isOver.Load(); n++ {
			began <- time.Now()
			frame := fmt.Sprintf(`{"payload":"%s","context":"%d"}`, text, n)
			if err := connection.WriteMessage(websocket.TextMessage, []byte(frame)); err != nil {
				log.Fatal(err)
			}
		}
	}()
	for n := 0; ; n++ {
		_, frame, err := connection.ReadMessage()
		if err != nil {
			log.Fatal(err)
		}
		var answer struct{ Result, Context, ErrorMsg string }
		if err := json.Unmarshal(frame, &answer); err != nil {
			log.Fatal(err)
		}
		if answer.Result != "ok" || answer.Context != strconv.Itoa(n) {
			failed.Add(1)
		}
		start := <-began
		if *load == "websocket-produce" {
			count(1, start)
		}
	}
}

// Acknowledges each message alone.
func websocketConsume() {
	connection := dial("consumer/" + topic + "/load?subscriptionType=Shared&receiverQueueSize=1000")
	for {
		_, frame, err := connection.ReadMessage()
		if err != nil {
			log.Fatal(err)
		}
		var message struct{ MessageId, PublishTime string }
		if err := json.Unmarshal(frame, &message); err != nil || message.MessageId == "" {
			failed.Add(1)
			continue
		}
		answer := fmt.Sprintf(`{"messageId":"%s"}`, message.MessageId)
		if err := connection.WriteMessage(websocket.TextMessage, []byte(answer)); err != nil {
			log.Fatal(err)
		}
		count(1, time.Time{})
	}
}

func restProduce() {
	one := fmt.Sprintf(`{"payload":"%s"}`, strings.Repeat("x", *size))
	all := strings.Repeat(one+",", *batch-1) + one
	body := []byte(`{"messages":[` + all + `]}`)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1}}
	url := *web + "/topics/" + topic
	for !isOver.Load() {
		began := time.Now()
		response, err := client.Post(url, "application/json", bytes.NewReader(body))
		if err != nil {
			log.Fatal(err)
		}
		text, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil {
			log.Fatal(err)
		}
		if stored := bytes.Count(text, []byte(`"messageId"`)); response.StatusCode != 200 || stored != *batch {
			if failed.Add(1) == 1 {
				log.Printf("%s: %s", response.Status, text)
			}
			continue
		}
		count(int64(*batch), began)
	}
}

// Pulsar's REST doesn't create topics.
func createTopic() {
	request, err := http.NewRequest("PUT", *web+"/admin/v2/"+topic, nil)
	if err != nil {
		log.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		log.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode >= 300 && response.StatusCode != 409 {
		log.Fatalf("PUT %s: %s", topic, response.Status)
	}
}

func percentile(share float64) float64 {
	if len(times) == 0 {
		return 0
	}
	return float64(times[int(float64(len(times)-1)*share)].Microseconds()) / 1000
}

func main() {
	flag.Parse()
	createTopic()
	if *load == "websocket-pipe" {
		go websocketConsume()
	}
	for range *connections {
		switch *load {
		case "websocket-produce", "websocket-pipe":
			go websocketProduce()
		case "rest-produce":
			go restProduce()
		default:
			log.Fatalf("no such load: %s", *load)
		}
	}
	time.Sleep(time.Duration(*warmUp * float64(time.Second)))
	fmt.Println("measuring")
	began := time.Now()
	isMeasuring.Store(true)
	time.Sleep(time.Duration(*seconds * float64(time.Second)))
	isMeasuring.Store(false)
	took := time.Since(began).Seconds()
	isOver.Store(true)
	mutex.Lock()
	defer mutex.Unlock()
	slices.Sort(times)
	result, _ := json.Marshal(map[string]any{
		"messages": done.Load(), "seconds": took, "failed": failed.Load(),
		"p50_ms": percentile(0.5), "p99_ms": percentile(0.99),
	})
	fmt.Println(string(result))
}
