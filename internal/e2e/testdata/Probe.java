import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Tries to produce to a read-only topic in several ways at once and prints a line for each step of each way: its name, the
 * milliseconds that it took, what came of it, and the text that the client shows.
 *
 * Arguments: bootstrap servers, delivery timeout in ms, read-only topic, another topic, ways.
 */
public class Probe {
    static String bootstrap, readOnly, other;
    static int delivery;

    public static void main(String[] args) throws Exception {
        bootstrap = args[0];
        delivery = Integer.parseInt(args[1]);
        readOnly = args[2];
        other = args[3];
        List<Thread> threads = new ArrayList<>();
        for (int i = 4; i < args.length; i++) {
            String way = args[i];
            Thread t = new Thread(() -> {
                if (way.startsWith("txn")) transactional(way); else plain(way);
            });
            t.start();
            threads.add(t);
        }
        for (Thread t : threads) t.join();
    }

    static Properties config() {
        Properties p = new Properties();
        p.put("bootstrap.servers", bootstrap);
        p.put("key.serializer", StringSerializer.class.getName());
        p.put("value.serializer", StringSerializer.class.getName());
        p.put("request.timeout.ms", String.valueOf(delivery / 2));
        p.put("delivery.timeout.ms", String.valueOf(delivery));
        p.put("max.block.ms", "20000");
        p.put("linger.ms", "0");
        return p;
    }

    static synchronized void say(String way, long begin, String what, String text) {
        System.out.println(way + "\t" + (System.currentTimeMillis() - begin) + "\t" + what + "\t" + String.valueOf(text).replace('\n', ' '));
    }

    static void failed(String way, long begin, Exception e) {
        Throwable t = e instanceof ExecutionException ? e.getCause() : e;
        String kind = t instanceof RetriableException ? "retriable " : "final ";
        say(way, begin, kind + t.getClass().getSimpleName(), t.getMessage());
    }

    static void plain(String way) {
        Properties p = config();
        p.put("acks", way.equals("idempotent") ? "all" : way.substring("acks=".length()));
        p.put("enable.idempotence", String.valueOf(way.equals("idempotent")));
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(p)) {
            producer.partitionsFor(readOnly);
            long begin = System.currentTimeMillis();
            try {
                long offset = producer.send(new ProducerRecord<>(readOnly, 0, "probe", way)).get().offset();
                say(way, begin, "acked", String.valueOf(offset));
            } catch (Exception e) {
                failed(way, begin, e);
            }
        }
    }

    /** What a call could not wait for is waited for by calling it again. */
    static void abort(KafkaProducer<String, String> producer) {
        for (int i = 0; ; i++) {
            try {
                producer.abortTransaction();
                return;
            } catch (RetriableException e) {
                if (i == 3) throw e;
            }
        }
    }

    /** One transaction over both topics, which has to be aborted, and as many as it takes over the other one alone. */
    static void transactional(String way) {
        Properties p = config();
        p.put("transactional.id", way);
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(p)) {
            producer.initTransactions();
            producer.beginTransaction();
            long begin = System.currentTimeMillis();
            try {
                producer.send(new ProducerRecord<>(other, 0, way, "aborted")).get();
                begin = System.currentTimeMillis();
                producer.send(new ProducerRecord<>(readOnly, 0, way, "refused")).get();
                say(way, begin, "acked", "");
            } catch (Exception e) {
                failed(way, begin, e);
            }
            abort(producer);
            say(way, begin, "aborted", "");
            for (int i = 0; ; i++) {
                try {
                    producer.beginTransaction();
                    producer.send(new ProducerRecord<>(other, 0, way, "committed")).get();
                    producer.commitTransaction();
                    say(way, begin, "committed", "");
                    return;
                } catch (Exception e) {
                    if (i == 20) throw e;
                    failed(way + "-again", begin, e);
                    abort(producer);
                }
            }
        } catch (Exception e) {
            failed(way, System.currentTimeMillis(), e);
        }
    }
}
