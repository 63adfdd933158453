package admin

import "testing"

// TestConfigEntryHidesSecrets: what list hides DescribeConfigs hides too, also of properties that mean nothing to us.
func TestConfigEntryHidesSecrets(t *testing.T) {
	for name, value := range map[string]string{
		"ssl.key.password": "${file:p}", "sasl.jaas.config": "x", "custom.password": "hunter2", "mirror.source.admin.basic.Secret": "hunter2",
	} {
		e := configEntry(name, value, true)
		if !e.IsSensitive || e.Value != nil || e.ConfigSynonyms[0].Value != nil {
			t.Errorf("%s is shown: %+v", name, e)
		}
	}
	if e := configEntry("mirror.topics.include", "a,b", true); e.IsSensitive || e.Value == nil {
		t.Errorf("no secret, and hidden: %+v", e)
	}
}
